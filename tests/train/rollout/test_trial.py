"""The trial of a program before its run: real processes, and no model."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import ltrain_command

from ltrain_train.processes import free_port
from ltrain_train.rollout import AgentProgram, import_program
from ltrain_train.workers import BadReference

AGENT = "def solve(task, llm):\n    return 'done'\n"
REWARD = "def score(task, result):\n    return 1.0\n"
RAISES = "import math\n\n\ndef load():\n    return {}['key']\n\n\nTABLE = load()\n"
RECIPE = """
policy = [{ name = "p" }]

[[reward]]
name = "answer"
evaluation = "reward"

[rollout]
tasks = "tasks.jsonl"
agent = "agent:solve"
reward = "trial_reward:score"
"""
FAULTS = [
    ("agent", "agnet:solve", "no such module in {folder}. Did you mean 'agent'?"),
    ("agent", "agent:sovle", "has no function 'sovle'. Did you mean 'agent:solve'?"),
    ("agent", "raises:solve", "KeyError: 'key' ({folder}/raises.py, line 5)."),
    ("agent", "wrong:solve", "SyntaxError: invalid syntax ({folder}/wrong.py, line 1)."),
    ("agent", "leaves:solve", "SystemExit: 3 ({folder}/leaves.py, line 1)."),
    ("agent", "agent.solve", "nor a program. Write a function as in agent:solve."),
    ("reward", "trial_reward:scroe", "has no function 'scroe'. Did you mean 'trial_reward:score'?"),
    ("reward", "raises:score", "KeyError: 'key' ({folder}/raises.py, line 5)."),
    ("reward", "leaves:score", "SystemExit: 3 ({folder}/leaves.py, line 1)."),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an agent, a reward, a recipe, and modules that cannot be imported."""
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LTRAIN_STORE", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("LTRAIN_GATEWAY", f"http://127.0.0.1:{free_port()}")
    for name, text in {
        "agent.py": AGENT, "trial_reward.py": REWARD, "raises.py": RAISES, "ltrain.toml": RECIPE,
        "wrong.py": "def solve(:\n", "leaves.py": "raise SystemExit(3)\n",
        "tasks.jsonl": '{"id": "a", "input": "1 + 1"}\n',
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(("key", "reference", "sentence"), FAULTS)
def test_a_program_that_cannot_be_imported_is_an_error(
    folder: Path, key: str, reference: str, sentence: str
) -> None:
    names: dict[str, Any] = {"agent": "agent:solve", "reward": "trial_reward:score", key: reference}
    program = AgentProgram(folder=folder, **names)
    with pytest.raises(BadReference) as raised:
        import_program(program, folder / "home", [])
    assert str(raised.value).endswith(sentence.format(folder=folder))


def test_an_imported_program_leaves_no_process_and_no_span(folder: Path) -> None:
    (folder / "agent.py").write_text(
        f"import os\nopen('pid', 'w').write(str(os.getpid()))\n{AGENT}"
    )
    import_program(
        AgentProgram(folder=folder, agent="agent:solve", reward="trial_reward:score"),
        folder / "home",
        [],
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)
    assert not list((folder / "home").rglob("*.otlp"))


@pytest.mark.parametrize(
    ("key", "reference", "sentence"), [FAULTS[0], FAULTS[2], FAULTS[5]], ids=lambda each: None
)
def test_a_run_reports_it_before_anything_is_started(
    folder: Path, key: str, reference: str, sentence: str
) -> None:
    argv = [ltrain_command(), "run", f"--{key}", reference]
    began = time.monotonic()
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert time.monotonic() - began < 60  # on a quiet machine it takes 3 s
    assert done.returncode == 1
    assert sentence.format(folder=".") in done.stderr.replace(str(folder), ".")
    assert not (folder / "home" / "runs").exists()
    assert [each.name for each in (folder / "home" / "logs").rglob("*.log")] in (
        [], ["worker-1.log"]
    )  # fmt: skip
