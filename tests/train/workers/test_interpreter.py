"""The Python of an agent that has an environment of its own."""

import os
import queue
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from ltrain_instrument.identity import Identity
from ltrain_train import workers
from ltrain_train.workers import AgentProcesses, BadInterpreter, Executor, find_python
from ltrain_train.workers.attempt import Attempt, AttemptResult, Endpoint
from ltrain_train.workers.executor import agent_environment

PYTHON = Path(__file__).parents[3] / ".venv-examples" / "bin" / "python"
AGENT = """
import sys
import autogen_core  # not in ltrain's own environment

def solve(task, llm):
    return sys.prefix
"""
COMMAND = "python -c 'import autogen_core, sys; print(sys.prefix)'"


Results = queue.SimpleQueue[AttemptResult]


def open_executor(agent: str, folder: Path, python: Path, results: Results) -> Executor:
    environ = agent_environment(folder, {"OTEL_TRACES_EXPORTER": "none"}, python)

    def on_end(attempt: Attempt, result: AttemptResult) -> None:
        results.put(result)

    processes = AgentProcesses(
        agent=agent,
        folder=folder,
        environ=environ,
        logs=folder / "logs",
        workers=1,
        python=python,
    )
    return workers.open_executor(processes, on_end)


@pytest.mark.parametrize("agent", ["elsewhere:solve", COMMAND])
def test_an_agent_runs_in_its_own_environment(agent: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(AGENT)
    results: Results = queue.SimpleQueue()
    python = find_python(os.path.relpath(PYTHON, tmp_path), tmp_path)
    attempt = Attempt(
        identity=Identity(
            run="r", task="t", domain="", wave=0, sample=0, rollout="x", attempt=1, mode="train"
        ),
        task={"id": "t"},
        endpoint=Endpoint("http://127.0.0.1:9/v1", "key", "m"),
        traceparent="",
        started=time.time_ns(),
        timeout=60.0,
    )
    with closing(open_executor(agent, tmp_path, python, results)) as executor:
        executor.wait_ready(60)
        executor.submit(attempt)
        assert results.get(timeout=60).output == str(PYTHON.parents[1])


def test_without_a_path_it_is_the_python_of_ltrain(tmp_path: Path) -> None:
    assert find_python(None, tmp_path) == Path(sys.executable)


def test_an_interpreter_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInterpreter, match=r"absent/bin/python' cannot run the agent: .*No such"):
        find_python("absent/bin/python", tmp_path)


def test_an_environment_without_ltrain_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInterpreter, match=r"needs ltrain .* \(ModuleNotFoundError: .*-m pip"):
        find_python(sys._base_executable, tmp_path)  # type: ignore[attr-defined]


def test_an_environment_with_another_ltrain_is_an_error(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 0.0.1\n")
    other.chmod(0o755)
    with pytest.raises(BadInterpreter, match=r"needs ltrain .* \(it has 0\.0\.1\)"):
        find_python("python", tmp_path)
