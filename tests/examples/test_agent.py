"""The agent of the example with a fake server: alone, with both distros, and in workers."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.runners import make_runner

from ltrain_train.rollout import load_tasks

INSTRUMENT = Path(sys.executable).with_name("opentelemetry-instrument")
QUESTION = "How many airlines are from Peru?"
GOOD = "SELECT count(*) FROM airline WHERE country = 'Peru';"
BAD = "SELECT count(*) FROM airlines;"
FURTHER = [("Is the query", "correct"), ("Rows:", "Two are.")]
"""What the checker and the rewriter answer after a query."""
STOCK = {
    "OTEL_PYTHON_DISTRO": "distro",
    "OTEL_PYTHON_CONFIGURATOR": "configurator",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
}


def run(folder: Path, outside: Any, tmp_path: Path, *command: object, **more: str) -> Any:
    environ = {
        **os.environ,
        "OPENAI_BASE_URL": f"{outside.url}/v1",
        "OPENAI_API_KEY": "none",
        "OTEL_EXPORTER_OTLP_ENDPOINT": outside.url,
        "LTRAIN_HOME": str(tmp_path),
        **more,
    }
    done = subprocess.run(
        [*map(str, command), sys.executable, "agent.py", "flights", QUESTION],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_runs_alone(folder: Path, outside: Any, tmp_path: Path) -> None:
    outside.rules, outside.reply = FURTHER, GOOD
    answer = run(folder, outside, tmp_path)
    assert answer == {"sql": GOOD[:-1], "rows": [[2]], "error": None, "answer": "Two are."}
    call = outside.calls[0]
    assert call.body["model"] == "sql"
    assert (call.body["temperature"], call.body["max_completion_tokens"]) == (0, 48)
    assert [message["role"] for message in call.body["messages"]] == [
        "system",
        *("user", "assistant") * 4,
        "user",
    ]


def test_calls_of_the_trained_agents_continue_one_conversation(
    folder: Path, outside: Any, tmp_path: Path
) -> None:
    outside.rules, outside.reply = [*FURTHER, ("Error:", GOOD)], BAD
    assert run(folder, outside, tmp_path)["rows"] == [[2]]
    first, second, third = (call.body["messages"] for call in outside.calls)
    assert (second[: len(first)], third[: len(second)]) == (first, second)
    assert [message["content"] for message in third[len(first) :]] == [
        BAD,
        f"Error: no such table: airlines. {QUESTION}",
        GOOD,
        f"Rows: [[2]]\nAnswer in words: {QUESTION}",
    ]


def test_an_unknown_database_is_named(folder: Path) -> None:
    command = [sys.executable, "agent.py", "ships", QUESTION]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "There is no database 'ships'. Choose from: concerts, shop, school, pets, flights, "
        "library, hospital, cinema.\n",
    )


@pytest.mark.parametrize(("distro", "clients", "every"), [("ltrain", 0, 15), ("stock", 3, 18)])
def test_it_is_traced_without_changes(
    folder: Path, outside: Any, tmp_path: Path, distro: str, clients: int, every: int
) -> None:
    outside.rules, outside.reply = [*FURTHER, ("Error:", GOOD)], BAD
    more = STOCK if distro == "stock" else {}
    answer = run(folder, outside, tmp_path, INSTRUMENT, **more)
    assert answer["rows"] == [[2]]
    spans = outside.wait_spans(every)
    names = Counter(span.name for span in spans)
    calls = {"ChatOpenAI": 3, "openai.chat": clients, "execute_sql": 2, "write_query": 1}
    assert {name: names[name] for name in calls} == calls
    assert [span.failed for span in spans if span.name == "execute_sql"] == [True, False]
    assert len({span.trace for span in spans}) == 1 or distro == "stock"


def test_workers_record_one_trace_per_rollout_and_reward_the_gold_query(
    folder: Path, outside: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", outside.url)
    tasks = load_tasks(folder / "val.jsonl")[:3]
    outside.rules = [*FURTHER, ("Error:", BAD)]
    outside.rules += [(str(task.input), task.query + ";") for task in tasks[:2]]  # type: ignore[attr-defined]
    outside.rules += [(str(tasks[2].input), BAD)]
    with make_runner(
        run="r",
        agent="agent:solve",
        reward="reward:score",
        folder=folder,
        gateway=outside.url,
        secret="a secret of thirty-two characters",
        policy="sql",
        home=tmp_path,
        workers=1,
        agent_sees=("input", "database", "schema"),
    ) as runner:
        results = runner.run("val", 0, tasks, 1, sampling={})
    by_task = {str(result.identity.task): result for result in results}
    assert [by_task[task.id].rewards["reward"] for task in tasks] == [1.0, 1.0, 0.0]
    assert [by_task[task.id].llm_calls for task in tasks] == [3, 3, 2]
    for result in results:
        spans = outside.spans(rollout=result.identity.rollout)
        assert len({span.trace for span in spans}) == 1
        assert [span.name for span in spans if not span.parent] == ["ltrain.rollout.dispatch"]
        assert sum(span.name == "ChatOpenAI" for span in spans) == result.llm_calls
    failed = outside.spans(rollout=by_task[tasks[2].id].identity.rollout, name="execute_sql")
    assert [span.failed for span in failed] == [True, True]
