"""`ltrain score` judges what the runner recorded: task and result, from the store."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import ltrain_command
from tests.otlp import insert_otlp, open_empty_store

from ltrain_instrument import attributes
from ltrain_instrument.identity import Identity, rollout_id
from ltrain_train.rollout import AgentProgram, score
from ltrain_train.rollout.runner import Runner
from ltrain_train.rollout.runner_spans import ClosingSpan, SpanWriter
from ltrain_train.rollout.score import read_rollouts
from ltrain_train.rollout.tasks import Task
from ltrain_train.store import open_service_provider
from ltrain_train.workers import Outcome

AGENTS = Path(__file__).parent / "agents"
Start = Callable[..., Runner]
Make = Callable[..., Task]


def ltrain(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [ltrain_command(), *arguments]
    return subprocess.run(command, cwd=AGENTS, capture_output=True, text=True, timeout=120)


def test_stored_rollouts_are_judged_again(
    served: Any, runner: Start, task: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # scoring signs its own key, as every process of ltrain does
    tasks = [task("a", gold="SELECT 1;"), task("b", gold="SELECT 2;"), task("c", raises=True)]
    started = runner("plain:solve", reward="scores:one")
    results = started.run("train", 0, tasks, 1, sampling={})
    started.__exit__(None, None, None)
    assert results.means() == {"reward": 2 / 3}
    for name in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"):
        monkeypatch.delenv(name)

    for _ in range(2):
        done = ltrain("score", "r", "--reward", "scores:matches")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [
            "run r: 2 of 3 rollouts scored, 1 skipped, 0 failed",
            "mean reward: 0.500",
            "skipped 1: the outcome is error: only results of outcome ok are judged",
        ]
    named = ltrain("score", "r", "--reward", "scores:matches", "--name", "exact", "--json")
    assert json.loads(named.stdout)["means"] == {"exact": 0.5}
    failed = ltrain("score", "r", "--reward", "scores:fails_on_some")
    assert failed.returncode == 1
    assert "1 of 3 rollouts scored, 1 skipped, 1 failed" in failed.stdout
    assert "scores:fails_on_some failed on task 'b': KeyError: 'gold'" in failed.stdout
    absent = ltrain("score", "q", "--reward", "scores:matches")
    assert absent.returncode == 1
    assert "has no rollout of a run 'q'" in " ".join(absent.stderr.replace("│", "").split())

    shown = ltrain("show", f"rollout:{rollout_id('r', 'train', 0, 'b', 0)}")
    assert shown.returncode == 0, shown.stderr
    lines = [line.strip() for line in shown.stdout.splitlines()]
    assert "task gold = SELECT 2;" in lines
    assert "task input = question b" in lines
    assert any(line.startswith('result = {"answer":') for line in lines)
    assert sum(line.startswith("reward reward +0.000 (runner") for line in lines) == 1
    tables = ltrain("show", f"rollout:{rollout_id('r', 'train', 0, 'b', 0)}", "--json").stdout
    assert "SELECT 2;" in tables


def test_a_sender_that_no_recipe_can_trust_is_refused() -> None:
    done = ltrain("score", "q", "--reward", "scores:one", "--trust", "ingest') OR ('1' = '1")
    sentence = " ".join(done.stderr.replace("│", "").split())
    assert (done.returncode, "Traceback" in sentence) == (1, False)
    assert "Unknown sender 'ingest') OR" in sentence
    assert "Choose from: agent, import, ingest, none." in sentence


def test_values_that_go_to_another_store_are_named(
    served: Any, runner: Start, task: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = runner("plain:solve", reward="scores:one")
    started.run("train", 0, [task("a"), task("b")], 1, sampling={})
    started.__exit__(None, None, None)
    monkeypatch.chdir(AGENTS)
    monkeypatch.setattr(score, "ARRIVAL", 1.0)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    report = score.score_stored_run("r", AgentProgram(folder=AGENTS, reward="scores:one"))
    assert (report.scored, report.failed) == (2, [])
    assert report.unseen.startswith("2 of 2 new values are not in http://127.0.0.1:")
    assert "They were sent to http://127.0.0.1:9" in report.as_text().splitlines()[-1]


def test_the_agent_gets_nothing_that_it_may_not_see(
    runner: Start, task: Make, outside: Any
) -> None:
    program = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv]))"
    started = runner(f"{sys.executable} -c '{program}'")
    (result,) = started.run("train", 0, [task(gold="the expected answer")], 1, sampling={})
    spans = {
        span.name: span.attributes
        for span in outside.wait_spans(2, rollout=result.identity.rollout)
        if span.scope == attributes.SCOPE_RUNNER
    }
    dispatch, closing = spans[attributes.SPAN_DISPATCH], spans[attributes.SPAN_ROLLOUT]
    assert dispatch[attributes.TASK_INPUT] == '"question a"'
    assert attributes.TASK_FIELDS not in dispatch
    assert json.loads(closing[attributes.TASK_FIELDS]) == {"gold": "the expected answer"}
    environ, _ = json.loads(closing[attributes.RESULT])
    assert environ["LTRAIN_TASK"]
    assert "the expected answer" not in closing[attributes.RESULT]


def write_rollout(home: Path, result: Any, contents: bool, ended: bool) -> None:
    provider = open_service_provider("runner", home)
    writer = SpanWriter(provider)
    identity = Identity(run="r", rollout="1" * 32, task="a", attempt=1, wave=0, mode="train")
    spans = writer.write_dispatch(identity, 60, "What?", {})
    values = {attributes.TASK_FIELDS: {"gold": "g"}, attributes.RESULT: result}
    if ended:
        closing = ClosingSpan.from_attempt(spans, Outcome.OK, reason="", llm_calls=0, digests={})
        writer.write_end(closing, values if contents else {})
    provider.shutdown()


@pytest.mark.parametrize(
    ("environ", "contents", "ended", "fault"),
    [
        ({}, True, True, ""),
        ({}, False, True, "its spans lack ltrain.task.fields and ltrain.rollout.result: content"),
        ({}, True, False, "its last attempt has not ended"),
        (
            {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "false"},
            *(True, True),
            "its spans lack ltrain.task.input and ltrain.task.fields and ltrain.rollout.result",
        ),
        ({"LTRAIN_REDACT": "secret-[0-9]+"}, True, True, "task or result were redacted"),
        ({"LTRAIN_SPAN_LIMIT": "10000"}, True, True, "task or result were shortened"),
    ],
)
def test_a_rollout_that_was_not_recorded_completely_is_not_judged(
    outside: Any,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    contents: bool,
    ended: bool,
    fault: str,
) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_INSTRUMENTATION")]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    result = {"text": "secret-1 \ud800 " + "x" * 20_000}
    write_rollout(home, result, contents, ended)
    outside.wait_spans(1 + ended, rollout="1" * 32)
    with open_empty_store(tmp_path / "store") as store:
        for request in outside.requests:
            insert_otlp(store, request)
        (rollout,) = read_rollouts(store, "r")
    assert rollout.fault.startswith(fault)
    assert (rollout.fault == "") == (rollout.task is not None)
    if rollout.task is not None:
        assert rollout.task.model_dump() == {
            **{"id": "a", "input": "What?", "domain": "", "gold": "g"}
        }
        assert rollout.result["text"].endswith("x" * 20_000)
