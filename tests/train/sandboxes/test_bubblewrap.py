"""Attempts in a sandbox of bubblewrap: an ordinary agent works, and limits end another one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sandboxed import sandbox_of, write_project

from ltrain_train.rollout import Runner, Task, import_program
from ltrain_train.rollout.program import AgentProgram
from ltrain_train.sandboxes import BadWorkspace, SandboxUnavailable
from ltrain_train.workers import Outcome, RolloutResult

Start = Callable[..., Runner]

TASK = Task.model_validate({"id": "a", "input": "?"})
AGENT = """
import json, os, subprocess, urllib.request
from pathlib import Path
from openai import OpenAI
from opentelemetry import trace

task = json.loads(os.environ["LTRAIN_TASK"])
with trace.get_tracer("agent").start_as_current_span("work"):
    answer = OpenAI().chat.completions.create(
        model=os.environ["OPENAI_MODEL"], messages=[{"role": "user", "content": task["input"]}]
    )
work = Path(os.environ["LTRAIN_WORKSPACE"])
(work / "code.py").write_text("print(2)\\n")
(Path.home() / "note").write_text("kept nowhere")
print(json.dumps({"answer": answer.choices[0].message.content, "work": os.listdir(work)}))
"""


@pytest.fixture
def start(runner: Start, tmp_path: Path) -> Callable[..., RolloutResult]:
    """Run one rollout of an agent in a sandbox."""

    def run(agent: str, command: str = "python agent.py", **keys: Any) -> RolloutResult:
        folder = write_project(tmp_path / "project", agent)
        task = Task.model_validate({"id": "a", "input": "?", "kept": str(tmp_path / "kept.json")})
        started = runner(
            command, folder=folder, reward="scored:score", environ={},
            sandbox=sandbox_of(folder, command, **keys), timeout=keys.pop("timeout", 60.0),
        )  # fmt: skip
        (result,) = started.run("train", 0, [task], 1, sampling={})
        return result

    return run


def test_an_agent_calls_its_model_and_the_reward_gets_what_it_changed(
    start: Callable[..., RolloutResult], outside: Any, tmp_path: Path, home: Path
) -> None:
    result = start(AGENT)
    assert (result.outcome, result.reason) == (Outcome.OK, "")
    assert result.llm_calls == 1
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["result"]["work"] == kept["files"] == ["code.py"]
    assert kept["diff"].splitlines()[-2:] == ["-print(1)", "+print(2)"]
    spans = outside.wait_spans(5, rollout=result.identity.rollout)
    assert {"work", "ltrain.process"} <= {span.name for span in spans}
    assert not list(home.glob("**/workspace/code.py"))
    assert (tmp_path / "project" / "work" / "code.py").read_text() == "print(1)\n"


def test_each_task_has_a_workspace_of_its_own(runner: Start, tmp_path: Path) -> None:
    folder = write_project(tmp_path / "project", "")
    tasks = []
    for name in ("a", "b"):
        (folder / "repositories" / name).mkdir(parents=True)
        (folder / "repositories" / name / "old").write_text(name)
        fields = {"id": name, "input": "?", "kept": str(tmp_path / f"{name}.json")}
        tasks.append(Task.model_validate(fields))
    command = 'cat "$LTRAIN_WORKSPACE"/*; echo new > "$LTRAIN_WORKSPACE/old"'
    started = runner(
        command, folder=folder, reward="scored:score", environ={},
        sandbox=sandbox_of(folder, command, workspace="repositories/{id}"),
    )  # fmt: skip
    assert started.run("train", 0, tasks, 2, sampling={}).outcomes == {"ok": 4}
    for name in ("a", "b"):
        kept = json.loads((tmp_path / f"{name}.json").read_text())
        assert (kept["result"], kept["files"]) == (name, ["old"])
        assert f"-{name}\n" in kept["diff"] and "+new" in kept["diff"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("x = bytearray(150 << 20); import time; time.sleep(30)", "100 MiB of memory"),
        ("import time\nwhile True: pass", "1 s of CPU"),
        (
            "import os, time\nwhile True:\n    os.fork()\n    time.sleep(0.001)",
            "40 processes and threads",
        ),
    ],
    ids=["memory", "cpu", "processes"],
)
def test_an_attempt_that_exceeds_a_limit_is_ended(
    start: Callable[..., RolloutResult], script: str, reason: str
) -> None:
    seconds = 1 if "CPU" in reason else 20
    limits = {"memory_mib": 100, "processes": 40, "disk_mib": 8, "cpu_seconds": seconds}
    result = start(script, "exec python -I agent.py", limits=limits)
    assert result.outcome is Outcome.ERROR
    assert reason in result.reason


def test_a_full_disk_is_an_error_in_the_attempt(start: Callable[..., RolloutResult]) -> None:
    script = """
import os, errno
def fill(path):
    try:
        for number in range(100):
            with open(f"{path}/{number}", "wb") as file:
                file.write(bytes(1 << 20))
    except OSError as error:
        return error.errno == errno.ENOSPC
for path in (os.environ["LTRAIN_WORKSPACE"], "/tmp"):
    assert fill(path), path
"""
    result = start(script, limits={"disk_mib": 8})
    assert (result.outcome, result.reason) == (Outcome.OK, "")


def test_a_timeout_sends_the_spans_of_the_attempt(
    start: Callable[..., RolloutResult], outside: Any
) -> None:
    script = """
from opentelemetry import trace
import time
with trace.get_tracer("agent").start_as_current_span("begun"):
    pass
time.sleep(600)
"""
    result = start(script, timeout=6.0)
    assert result.outcome is Outcome.TIMEOUT
    spans = outside.wait_spans(3, rollout=result.identity.rollout)
    assert "begun" in {span.name for span in spans}


def test_an_address_that_no_sandbox_can_reach_ends_the_attempt_with_the_reason(
    start: Callable[..., RolloutResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_SERVICE_DATABASE", "postgresql://10.0.0.5:5432")
    result = start(AGENT)
    assert result.outcome is Outcome.INFRA
    assert "A sandbox cannot reach 10.0.0.5 by its number" in result.reason


def test_a_machine_without_bwrap_is_found_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_project(tmp_path / "project", AGENT)
    program = AgentProgram(folder=folder, agent="python agent.py", sandbox=sandbox_of(folder))
    import_program(program, tmp_path / "home", [TASK])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap"):
        import_program(program, tmp_path / "home", [TASK])


def test_a_task_without_its_workspace_is_found_before_the_run(tmp_path: Path) -> None:
    folder = write_project(tmp_path / "project", AGENT)
    sandbox = sandbox_of(folder, workspace="{id}")
    program = AgentProgram(folder=folder, agent="python agent.py", sandbox=sandbox)
    (folder / "a").mkdir()
    import_program(program, tmp_path / "home", [TASK])
    other = Task.model_validate({"id": "b", "input": "?"})
    with pytest.raises(BadWorkspace, match=f"{folder}/b, which is not a folder"):
        import_program(program, tmp_path / "home", [TASK, other])


def test_a_machine_without_user_namespaces_is_found_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_project(tmp_path / "project", AGENT)
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create namespace' >&2; exit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    program = AgentProgram(folder=folder, agent="python agent.py", sandbox=sandbox_of(folder))
    with pytest.raises(SandboxUnavailable, match=r"user\.max_user_namespaces"):
        import_program(program, tmp_path / "home", [TASK])
