"""Exports of LangSmith and Langfuse, in the forms of their published APIs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl
import pytest
from tests.collector.sources.test_readers import imported, parts, rows
from tests.otlp import open_empty_store

from ltrain_collector.store import Store
from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source
from ltrain_transforms.rewards import read_evaluations
from ltrain_transforms.source import Selection, read_spans

QUESTION = {"role": "user", "content": "weather in Rome?"}
FUNCTION = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
CALL = {"id": "k1", "type": "function", "function": FUNCTION}
ANSWER = {"role": "assistant", "content": None, "tool_calls": [CALL]}
SESSIONS = "SELECT DISTINCT SessionId AS id FROM otel.spans WHERE id != ''"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_empty_store(tmp_path / "store") as opened:
        yield opened


def uuid(number: int) -> str:
    return str(UUID(int=0xABC0000000000000000000000000000 + number))


def time(second: int) -> str:
    return f"2026-03-04T10:00:{second:02}.000000"


def found(store: Store) -> tuple[pl.DataFrame, list[tuple[Any, ...]]]:
    """Return the calls, and call, name and value of each evaluation."""
    spans, _ = read_spans(store, Source(execution="trace"), Selection())
    frame = calls(spans)[0]
    evaluations, faults = read_evaluations(spans, frame)
    assert set(faults["reason"]) <= {"no_value"}  # a label without a number
    names = dict(frame.select("call_id", "name").iter_rows())
    scores = evaluations.select("call_id", "name", "value").rows()
    return frame, sorted((names.get(call, ""), name, value) for call, name, value in scores)


def run(number: int, kind: str, name: str, parent: int | None, **more: Any) -> dict[str, Any]:
    return {
        "id": uuid(number),
        "trace_id": uuid(1),
        "parent_run_id": parent and uuid(parent),
        "name": name,
        "run_type": kind,
        "start_time": time(number),
        "end_time": time(number + 1),
        "error": None,
        "extra": {"metadata": {"thread_id": "t-1"}},
        "feedback_stats": None,
        **more,
    }


def test_runs_of_langsmith(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    called = {"metadata": {"thread_id": "t-1"}, "invocation_params": {"model": "m"}}
    answered = {
        "inputs": {"messages": [QUESTION]},
        "outputs": {"choices": [{"message": ANSWER}]},
        "prompt_tokens": 9,
        "completion_tokens": 4,
    }
    failed = {"inputs": {"input": '{"city": "Rome"}'}, "error": "TimeoutError('slow')"}
    records = [
        run(1, "chain", "agent", None, feedback_stats={"correct": {"n": 2, "avg": 0.5}}),
        run(2, "llm", "ChatOpenAI", 1, extra=called, **answered),
        run(3, "tool", "get_weather", 1, feedback_stats={"kept": {"avg": 0}}, **failed),
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert imported(store, path).unreadable == 0
    frame, scores = found(store)
    assert rows(frame) == [
        ("node", "agent", None, "ok", None, None, None),
        ("llm", "m", "agent", "ok", 9, 4, None),
        ("tool", "get_weather", "agent", "error", None, None, 1),
    ]
    assert parts(frame["input"][1]) == [("user", ["text"])]
    assert parts(frame["output"][1]) == [("assistant", ["tool_call"])]
    assert scores == [("", "correct", 0.5), ("get_weather", "kept", 0.0)]
    assert store.query(SESSIONS)["id"].to_list() == ["t-1"]
    assert sum(imported(store, path).new_rows.values()) == 0


def observation(number: int, kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "id": uuid(number),
        "traceId": "lf-1",
        "type": kind,
        "name": name,
        "level": "DEFAULT",
        "startTime": time(number) + "Z",
        "endTime": time(number + 1) + "Z",
        "parentObservationId": None,
        **more,
    }


TRACE = {
    "id": "lf-1",
    "timestamp": time(1) + "Z",
    "name": "chat",
    "userId": "u",
    "sessionId": "s-1",
    "input": "weather?",
    "output": "no answer",
    "latency": 9.5,
}
USED = {"usageDetails": {"input": 9, "output": 4}, "modelParameters": {"temperature": 0.5}}
GENERATION = observation(
    2, "GENERATION", "call", model="m", input=[QUESTION], output=ANSWER, **USED
)
TOOL = observation(
    3, "TOOL", "get_weather", input={"city": "Rome"}, level="ERROR", statusMessage="timeout"
)


def score(second: int, name: str, kind: str, value: float | None, **more: Any) -> dict[str, Any]:
    place = {"id": name, "traceId": "lf-1", "observationId": None, "timestamp": time(second) + "Z"}
    return {**place, "name": name, "dataType": kind, "value": value, **more}


SCORES = [
    score(20, "thumbs", "BOOLEAN", 1, comment="good"),
    score(21, "useful", "NUMERIC", 0.25, observationId=uuid(3)),
    score(22, "tone", "CATEGORICAL", None, stringValue="warm"),
]


def snake(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the names of Langfuse's batch exports."""
    return {
        "".join(f"_{each.lower()}" if each.isupper() else each for each in key): value
        for key, value in record.items()
    }


@pytest.mark.parametrize("form", ["lines", "snake", "list", "nested"])
def test_exports_of_langfuse(store: Store, tmp_path: Path, form: str) -> None:
    path = tmp_path / "export.json"
    records = [*SCORES, TOOL, GENERATION, TRACE]
    if form == "nested":
        records = [{**TRACE, "observations": [TOOL, GENERATION], "scores": SCORES}]
    elif form == "snake":
        records = list(map(snake, records))
    lines = "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(json.dumps(records, indent=1) if form == "list" else lines)
    assert imported(store, path).unreadable == 0
    frame, scores = found(store)
    assert rows(frame) == [
        ("node", "chat", None, "ok", None, None, None),
        ("llm", "m", "chat", "ok", 9, 4, None),
        ("tool", "get_weather", "chat", "error", None, None, 1),
    ]
    assert frame["temperature"][1] == 0.5
    assert parts(frame["output"][1]) == [("assistant", ["tool_call"])]
    assert scores == [("", "thumbs", 1.0), ("get_weather", "useful", 0.25)]
    assert store.query(SESSIONS)["id"].to_list() == ["s-1"]
    assert sum(imported(store, path).new_rows.values()) == 0
