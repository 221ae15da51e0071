"""The agent of the example with a fake server: alone, with both distros, and in workers."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ltrain_train.rollout import Runner, load_tasks

INSTRUMENT = Path(sys.executable).with_name("opentelemetry-instrument")
QUESTION = "How many singers are from Norway?"
GOOD = "SELECT count(*) FROM singer WHERE country = 'Norway';"
BAD = "SELECT count(*) FROM singers;"
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
        [*map(str, command), sys.executable, "agent.py", QUESTION],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_query_that_runs_is_the_answer(folder: Path, outside: Any, tmp_path: Path) -> None:
    outside.reply = GOOD
    answer = run(folder, outside, tmp_path)
    assert answer == {"sql": GOOD[:-1], "rows": [[5]], "error": None, "executed": True}
    (call,) = outside.calls
    assert call.body["model"] == "sql"
    assert (call.body["temperature"], call.body["max_completion_tokens"]) == (0, 48)
    assert [message["role"] for message in call.body["messages"]] == [
        "system",
        *("user", "assistant") * 2,
        "user",
    ]


def test_a_failed_query_is_rewritten_once(folder: Path, outside: Any, tmp_path: Path) -> None:
    outside.reply = BAD
    answer = run(folder, outside, tmp_path)
    assert answer == {
        "sql": BAD[:-1],
        "rows": None,
        "error": "no such table: singers",
        "executed": False,
    }
    first, second = (call.body["messages"] for call in outside.calls)
    assert second[: len(first)] == first
    assert [message["content"] for message in second[len(first) :]] == [
        BAD,
        f"Error: no such table: singers. {QUESTION}",
    ]


@pytest.mark.parametrize(("distro", "clients", "every"), [("ltrain", 0, 12), ("stock", 2, 14)])
def test_it_is_traced_without_changes(
    folder: Path, outside: Any, tmp_path: Path, distro: str, clients: int, every: int
) -> None:
    outside.rules, outside.reply = [("Error:", GOOD)], BAD
    more = STOCK if distro == "stock" else {}
    answer = run(folder, outside, tmp_path, INSTRUMENT, **more)
    assert answer["executed"] is True
    spans = outside.wait_spans(every)
    names = Counter(span.name for span in spans)
    calls = {"ChatOpenAI": 2, "openai.chat": clients, "execute_sql": 2, "write_query": 1}
    assert {name: names[name] for name in calls} == calls
    assert [span.failed for span in spans if span.name == "execute_sql"] == [True, False]
    assert len({span.trace for span in spans}) == 1 or distro == "stock"


def test_workers_record_one_trace_per_rollout_and_reward_the_gold_query(
    folder: Path, outside: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", outside.url)
    tasks = load_tasks(folder / "val.jsonl")[:3]
    outside.rules = [("Error:", BAD)]
    outside.rules += [(str(task.input), task.gold + ";") for task in tasks[:2]]  # type: ignore[attr-defined]
    outside.rules += [(str(tasks[2].input), BAD)]
    with Runner(
        run="r",
        agent="agent:solve",
        reward="reward:score",
        folder=folder,
        gateway=outside.url,
        secret="a secret of thirty-two characters",
        policy="sql",
        home=tmp_path,
        workers=1,
    ) as runner:
        results = runner.run("val", 0, tasks, 1, sampling={})
    by_task = {str(result.identity.task): result for result in results}
    assert [by_task[task.id].rewards["reward"] for task in tasks] == [1.0, 1.0, 0.0]
    assert [by_task[task.id].llm_calls for task in tasks] == [1, 1, 2]
    for result in results:
        spans = outside.spans(rollout=result.identity.rollout)
        assert len({span.trace for span in spans}) == 1
        assert [span.name for span in spans if not span.parent] == ["ltrain.rollout.dispatch"]
        assert sum(span.name == "ChatOpenAI" for span in spans) == result.llm_calls
    failed = outside.spans(rollout=by_task[tasks[2].id].identity.rollout, name="execute_sql")
    assert [span.failed for span in failed] == [True, True]
