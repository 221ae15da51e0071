"""Every Python block of the docs runs as a whole program, in a prepared folder."""

import shutil
import sys
from pathlib import Path

import pytest
from tests.docs.blocks import BLOCKS, ROOT, Block, parametrize
from tests.docs.project import SECRET, Project
from tests.train.gateway.test_serve import program, serving

ELSEWHERE = {
    "# agent.py\n": "tests/docs/test_python.py",
    "# read.py\n": "tests/docs/test_python.py",
    "# train.py\n": "tests/end_to_end/test_session.py",
    "# service.py\n": "tests/end_to_end/test_feedback_path.py",
    "LearnerClient": "tests/train/learner/test_runs.py",
}
"""What a block contains that another test runs as it is printed, and that test."""
GATEWAY = "http://127.0.0.1:8000"
PAGES_WITH_GATEWAY = {"policies.md": "", "rollouts.md": "{'ok': 8} {'reward': 1.0}"}
"""Pages whose blocks run in order, with a gateway for those that name it; the last one's output."""
FAKE_VLLM = ROOT / "tests" / "fake_vllm.py"


def python_blocks(page: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == "python" and block.page.name == page]


def runs_alone(block: Block) -> bool:
    elsewhere = any(mark in block.text for mark in ELSEWHERE)
    return block.page.name not in PAGES_WITH_GATEWAY and not elsewhere


@pytest.mark.sampled(10)
@parametrize("python", where=runs_alone)
def test_python_runs(block: Block, project: Project) -> None:
    project.run(sys.executable, "-c", block.text)


@pytest.mark.parametrize("page", PAGES_WITH_GATEWAY)
def test_python_with_a_gateway_runs(page: str, project: Project) -> None:
    home = project.folder / ".ltrain"
    shutil.rmtree(home / "policies")
    (home / "store.secret").write_text(SECRET)  # which the blocks have in their environment
    blocks = python_blocks(page)
    for block in blocks[:-1]:
        project.run(sys.executable, "-c", block.text)
    assert GATEWAY in blocks[-1].text
    vllm = program(project.folder / "python", f'exec {sys.executable} {FAKE_VLLM} "$@"')
    with serving(home, vllm, str(home / "models" / "smollm2"), "--policy", "sql") as gateway:
        text = blocks[-1].text.replace(GATEWAY, gateway.url)
        assert project.run(sys.executable, "-c", text).stdout.strip() == PAGES_WITH_GATEWAY[page]


@pytest.mark.parametrize("mark", ELSEWHERE)
def test_blocks_that_another_test_runs_exist(mark: str) -> None:
    [block] = [each for each in BLOCKS if each.language == "python" and mark in each.text]
    test = (ROOT / ELSEWHERE[mark]).read_text()
    assert f'"{Path(block.page).name}"' in test
