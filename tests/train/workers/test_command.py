"""Agents that are commands: their environment, the meaning of their exit, and their children."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ltrain_instrument.identity import Identity
from ltrain_train.rollout import Runner, Task
from ltrain_train.workers import output
from ltrain_train.workers.attempt import Attempt, Endpoint, Outcome, RolloutResult
from ltrain_train.workers.command import CommandExecutor
from ltrain_train.workers.executor import AgentProcesses, agent_environment

Start = Callable[..., Runner]
Make = Callable[..., Task]

SCRIPT = """\
import json, os, sys, time
from types import SimpleNamespace
from plain import ask
from opentelemetry import trace

task = json.loads(os.environ["LTRAIN_TASK"])
llm = SimpleNamespace(
    base_url=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    model=os.environ["OPENAI_MODEL"],
)
with trace.get_tracer("agent").start_as_current_span("work"):
    answer = ask(llm, task["input"])
print("noise")
print("what went wrong", file=sys.stderr)
time.sleep(task.get("sleeps", 0))
print(json.dumps({"answer": answer}))
print()
sys.exit(task.get("exits", 0))
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    agents = Path(__file__).parents[1] / "rollout" / "agents"
    return f"PYTHONPATH={agents}:$PYTHONPATH python {path}"


def only(runner: Runner, task: Task) -> RolloutResult:
    (result,) = runner.run("train", 0, [task], 1, sampling={})
    return result


def test_the_last_line_is_the_result_and_the_spans_are_in_the_rollouts_trace(
    runner: Start, task: Make, outside: Any, script: str
) -> None:
    result = only(runner(script, reward="scores:one"), task())
    assert (result.outcome, result.llm_calls, result.rewards) == (Outcome.OK, 1, {"reward": 1.0})
    spans = outside.wait_spans(5, rollout=result.identity.rollout)
    assert {"work", "ltrain.process"} <= {span.name for span in spans}
    assert len({span.trace for span in spans}) == 1
    (process,) = [span for span in spans if span.name == "ltrain.process"]
    own = [span for span in spans if span.instance == process.instance]
    assert process.attributes["ltrain.rollout.spans"] == len(own) - 1


def test_a_nonzero_exit_status_is_the_agents_error(runner: Start, task: Make, script: str) -> None:
    result = only(runner(script), task(exits=3))
    assert result.outcome is Outcome.ERROR
    assert result.reason == "the command ended with status 3: what went wrong"


def test_a_command_that_prints_too_much_is_ended_and_its_output_is_cut(
    runner: Start, task: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "MAX_OUTPUT_BYTES", 2 << 20)
    result = only(runner("yes >&2", reward=None), task())
    assert result.outcome is Outcome.ERROR
    assert result.reason == "the command printed more than 2 MiB"
    (log,) = tmp_path.rglob(f"{result.identity.rollout}.1.log")
    assert log.stat().st_size == 1 << 20


def test_a_command_that_times_out_is_ended_with_its_children(
    runner: Start, task: Make, outside: Any, script: str
) -> None:
    result = only(runner(f"sleep 61.5 & {script}", timeout=15.0), task(sleeps=60))
    assert result.outcome is Outcome.TIMEOUT
    assert outside.wait_spans(1, name="work"), "SIGTERM leaves time for the spans"
    until = time.monotonic() + 5
    while _sleepers() and time.monotonic() < until:
        time.sleep(0.05)
    assert not _sleepers()


def test_a_killed_command_is_an_error(
    runner: Start, task: Make, tmp_path: Path, script: str
) -> None:
    once = tmp_path / "once"
    result = only(runner(f"test -e {once} || {{ touch {once}; kill -9 $$; }}; {script}"), task())
    assert (result.outcome, result.identity.attempt) == (Outcome.ERROR, 1)
    assert result.reason.startswith("the command was killed")


def test_a_command_that_the_kernel_may_have_killed_for_lack_of_memory_is_tried_again_once(
    runner: Start, task: Make, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = itertools.count()
    monkeypatch.setattr("ltrain_train.workers.attempt.count_oom_kills", lambda: 10**9 + next(kills))
    result = only(runner("kill -9 $$"), task())
    assert (result.outcome, result.identity.attempt) == (Outcome.ERROR, 2)


@pytest.mark.parametrize("last", ["NaN", "[" * 5000, '{"a": Infinity}'])
def test_a_last_line_that_is_not_json_is_text(runner: Start, task: Make, last: str) -> None:
    result = only(runner(f"echo '{last}'", reward="scores:words"), task())
    assert result.outcome is Outcome.OK
    assert result.rewards["reward"] >= 1


def test_plain_text_is_a_result(runner: Start, task: Make) -> None:
    result = only(runner("echo plain text", reward="scores:words"), task())
    assert result.rewards == {"reward": 2.0}


def _sleepers() -> list[int]:
    return [
        p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "61.5"]
    ]


def test_the_lock_of_a_run_is_free_when_its_commands_have_ended(
    home: Path, tmp_path: Path, held_lock: Any
) -> None:
    mark = tmp_path / "mark"
    executor = CommandExecutor(
        AgentProcesses(
            agent=f"touch {mark}; sleep 600",
            folder=tmp_path,
            environ=agent_environment(home, {}),
            logs=tmp_path / "logs",
            workers=1,
            keep_open=(held_lock.descriptor,),
        ),
        on_end=lambda attempt, ending: None,
    )
    identity = Identity(run="r", rollout="abc", attempt=1, mode="train")
    nowhere = Endpoint("http://127.0.0.1:9", "key", "policy")
    executor.submit(
        Attempt(
            identity=identity, task={}, endpoint=nowhere, traceparent="", started=0, timeout=600.0
        )
    )
    until = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < until:
        time.sleep(0.05)
    held_lock.release()
    assert not held_lock.is_free
    executor.close()
    assert held_lock.is_free
