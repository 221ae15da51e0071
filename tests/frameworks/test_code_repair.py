"""The agents of examples/code_repair, as `solve.sh` starts them, repair a module in a sandbox."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from tests.examples.example_module import load_module
from tests.fork_server import ltrain_command
from tests.up import running_up, start_server

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "code_repair"
ENVIRONMENTS = {"mini": "pyclients", "codex": "clients"}
"""The environment of each agent."""
TASKS = 6


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of `ltrain rollout`, with a gateway before the teacher."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        teacher = load_module(FOLDER, "teacher").make_server(0)
    Thread(target=teacher.serve_forever, daemon=True).start()
    home = tmp_path_factory.mktemp("home")
    with running_up(home / "store") as up:
        variables = {
            **os.environ,
            "LTRAIN_HOME": str(home),
            "LTRAIN_STORE": up.dsn,
            "OTEL_EXPORTER_OTLP_ENDPOINT": up.endpoint,
        }
        url = f"http://127.0.0.1:{teacher.server_port}/v1"
        serve = (ltrain_command(), "serve", "--port", "0", "--upstream", url, "--policy", "teacher")
        gateway, line = start_server(serve, variables, "ltrain: gateway ready at ")
        yield {**variables, "LTRAIN_GATEWAY": line.split()[4].removesuffix("/v1,")}
        gateway.terminate()
        gateway.wait()
    teacher.shutdown()
    teacher.server_close()


@pytest.mark.parametrize("agent", ENVIRONMENTS)
def test_an_agent_edits_its_copy_and_is_rewarded(
    environ: dict[str, str], agent: str, tmp_path: Path
) -> None:
    environment = f".venv-{ENVIRONMENTS[agent]}"
    if not (ROOT / environment).exists():
        pytest.fail(f"{environment} is missing: make test-frameworks makes it")
    tasks = tmp_path / f"{agent}.jsonl"
    lines = (FOLDER / "train.jsonl").read_text().splitlines(keepends=True)
    tasks.write_text("".join(lines[:TASKS]))
    rollout = partial(subprocess.run, env=environ, cwd=FOLDER, capture_output=True, text=True)
    sandbox = ["--sandbox", "bubblewrap", "--workspace", "repositories/{id}"]
    visible = ["--visible", "config", "--visible", f"../../{environment}"]
    options = [*sandbox, *visible, "--reward", "reward:score", "--policy", "teacher", "--json"]
    command = [ltrain_command(), "rollout", str(tasks), *options, "--", "sh", "solve.sh", agent]
    done = rollout(command, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    rollouts = json.loads(done.stdout)["rollouts"]
    assert {each["outcome"] for each in rollouts} == {"ok"}
    most = 4 if agent == "codex" else 3  # one more if the teacher looks in the wrong folder
    assert {each["llm_calls"] for each in rollouts} <= {most - 1, most}
    for each in rollouts:  # it knows the repair, and may write it to the wrong place
        assert each["rewards"]["edited"] == each["rewards"]["reward"]
    assert any(each["rewards"]["reward"] for each in rollouts)
