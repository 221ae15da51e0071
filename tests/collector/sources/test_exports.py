"""Exports of Braintrust, Weave and Opik, trajectories, rollouts, and tables of records."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.collector.sources.test_platforms import (
    ANSWER,
    GENERATION,
    QUESTION,
    SCORES,
    TOOL,
    TRACE,
    found,
    snake,
)
from tests.collector.sources.test_readers import imported, parts, rows
from tests.otlp import open_empty_store

from ltrain_collector.store import Store
from ltrain_collector.transfer.importing import import_files, list_files

SESSIONS = "SELECT DISTINCT SessionId AS id FROM otel.spans WHERE id != ''"
ASKED = {"model": "m", "messages": [QUESTION]}
ANSWERED = {"id": "r", "model": "m", "choices": [{"message": ANSWER, "finish_reason": "stop"}]}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_empty_store(tmp_path / "store") as opened:
        yield opened


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def calls(store: Store) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return kind, name, status and tokens of the calls but nodes, and the scores."""
    frame, scores = found(store)
    kept = [row for row in rows(frame) if row[0] != "node"]
    return [(row[0], row[1], row[3], row[4], row[5]) for row in kept], scores


EXPECTED = [("llm", "m", "ok", 9, 4), ("tool", "get_weather", "error", None, None)]


def braintrust(number: int, kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "id": f"row{number}",
        "span_id": f"s{number}",
        "root_span_id": "s1",
        "span_parents": ["s1"] if number > 1 else None,
        "span_attributes": {"name": name, "type": kind},
        "created": f"2026-03-04T10:00:0{number}.000Z",
        "metrics": {"start": 1772618400.0 + number, "end": 1772618400.5 + number},
        "scores": None,
        **more,
    }


def test_logs_of_braintrust(store: Store, tmp_path: Path) -> None:
    used = {"start": 1772618402.0, "end": 1772618403.0, "prompt_tokens": 9, "completion_tokens": 4}
    path = write(
        tmp_path / "logs.jsonl",
        braintrust(1, "task", "agent", scores={"correct": 0.5, "skipped": None}),
        braintrust(
            2, "llm", "call", input=[QUESTION], output=[{"message": ANSWER}],
            metadata={"model": "m", "session_id": "s-1"}, metrics=used,
        ),
        braintrust(
            3, "tool", "get_weather", input={"city": "Rome"}, error="timeout", scores={"kept": 0}
        ),
    )  # fmt: skip
    assert imported(store, path).unreadable == 0
    assert calls(store) == (EXPECTED, [("", "correct", 0.5), ("get_weather", "kept", 0.0)])
    assert sum(imported(store, path).new_rows.values()) == 0


def weave(number: int, name: str, **more: Any) -> dict[str, Any]:
    return {
        "id": f"0197-{number}",
        "project_id": "team/project",
        "op_name": f"weave:///team/project/op/{name}:v1",
        "trace_id": "0197-trace",
        "parent_id": "0197-1" if number > 1 else None,
        "started_at": f"2026-03-04T10:00:0{number}Z",
        "ended_at": f"2026-03-04T10:00:0{number + 1}Z",
        "inputs": {},
        "output": None,
        "thread_id": "t-1",
        **more,
    }


def test_calls_of_weave(store: Store, tmp_path: Path) -> None:
    usage = {"usage": {"m": {"prompt_tokens": 9, "completion_tokens": 4, "requests": 1}}}
    thumb = {"feedback_type": "wandb.reaction.1", "payload": {"emoji": "👎"}, "id": "f1"}
    judge = {"feedback_type": "wandb.runnable.judge", "payload": {"output": 0.5}, "id": "f2"}
    path = write(
        tmp_path / "calls.jsonl",
        weave(1, "agent", summary={"weave": {"feedback": [thumb, judge]}}),
        weave(2, "openai.chat", inputs=ASKED, output=ANSWERED, summary=usage),
        weave(
            3, "get_weather", inputs={"city": "Rome"}, exception="timeout",
            attributes={"weave": {"kind": "tool"}},
        ),
    )  # fmt: skip
    assert imported(store, path).unreadable == 0
    assert calls(store) == (EXPECTED, [("", "judge", 0.5), ("", "wandb.reaction.1", 0.0)])
    assert store.query(SESSIONS)["id"].to_list() == ["t-1"]


def opik(number: int, kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "id": f"0197-{number}",
        "trace_id": "0197-trace",
        "parent_span_id": None,
        "type": kind,
        "name": name,
        "start_time": f"2026-03-04T10:00:0{number}Z",
        "end_time": f"2026-03-04T10:00:0{number + 1}Z",
        "input": {},
        **more,
    }


@pytest.mark.parametrize("nested", [True, False])
def test_exports_of_opik(store: Store, tmp_path: Path, nested: bool) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4}
    failure = {"exception_type": "TimeoutError", "message": "slow"}
    rating = {"name": "thumbs", "value": 1, "source": "ui", "reason": "good"}
    trace = {
        "id": "0197-trace",
        "name": "agent",
        "start_time": "2026-03-04T10:00:00Z",
        "end_time": "2026-03-04T10:00:09Z",
        "input": {"question": "weather?"},
        "thread_id": "t-1",
        "feedback_scores": [rating],
    }
    below = [
        opik(1, "llm", "call", model="m", usage=usage, input=ASKED, output=ANSWERED),
        opik(2, "tool", "get_weather", input={"city": "Rome"}, error_info=failure),
    ]
    records = [{"trace": trace, "spans": below}] if nested else [*below, trace]
    path = write(tmp_path / "opik.jsonl", *records)
    assert imported(store, path).unreadable == 0
    assert calls(store) == (EXPECTED, [("", "thumbs", 1.0)])
    assert store.query(SESSIONS)["id"].to_list() == ["t-1"]


def test_trajectories_of_atif(store: Store, tmp_path: Path) -> None:
    trajectory = {
        "schema_version": "ATIF-v1.7",
        "session_id": "s-1",
        "agent": {"name": "terminus", "version": "2", "model_name": "m"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "weather in Rome?"},
            {
                "step_id": 2,
                "source": "agent",
                "timestamp": "2026-03-04T10:00:00Z",
                "message": "I look.",
                "tool_calls": [
                    {"tool_call_id": "k1", "function_name": "get_weather", "arguments": {"a": 1}}
                ],
                "observation": {"results": [{"source_call_id": "k1", "content": "21"}]},
                "metrics": {"prompt_tokens": 9, "completion_tokens": 4},
            },
            {"step_id": 3, "source": "agent", "message": "21 degrees."},
        ],
        "extra": {"reward": 1.0},
    }
    path = write(tmp_path / "trajectory.json", trajectory)
    assert imported(store, path).unreadable == 0
    frame, scores = found(store)
    kept = [(row[0], row[1], row[4], row[6]) for row in rows(frame)]
    assert kept == [
        ("agent", "terminus", None, None),
        ("llm", "m", 9, None),
        ("tool", "get_weather", None, 1),
        ("llm", "m", None, None),
    ]
    assert [role for role, _ in parts(frame["input"][3])] == ["user", "assistant", "tool"]
    assert scores == [("", "reward", 1.0)]


MESSAGES = [QUESTION, ANSWER, {"role": "tool", "tool_call_id": "k1", "content": "21"}]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": MESSAGES, "reward": 1.0},
        {"prompt": [QUESTION], "completion": MESSAGES[1:], "reward": 1.0, "answer": "21"},
        {"steps": [{"chat_completions": []}, {"chat_completions": MESSAGES}], "reward": 1.0},
    ],
    ids=["messages", "verifiers", "rllm"],
)
def test_saved_rollouts(store: Store, tmp_path: Path, record: dict[str, Any]) -> None:
    path = write(tmp_path / "rollouts.jsonl", record)
    assert imported(store, path).unreadable == 0
    frame, scores = found(store)
    assert [row[:2] for row in rows(frame)] == [
        ("agent", "chat"), ("llm", "unknown"), ("tool", "get_weather"),
    ]  # fmt: skip
    assert scores == [("", "reward", 1.0)]


def test_an_answer_in_a_prompt_is_not_a_call(store: Store, tmp_path: Path) -> None:
    record = {"prompt": [QUESTION, {"role": "assistant", "content": "an example"}, QUESTION]}
    path = write(tmp_path / "rows.jsonl", record | {"completion": "21 degrees."})
    assert imported(store, path).unreadable == 0
    frame, _ = found(store)
    [call] = frame.filter(kind="llm")["input"]
    assert [role for role, _ in parts(call)] == ["user", "assistant", "user"]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_folder_of_datasets(store: Store, tmp_path: Path, form: str) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    table = pa.Table.from_pylist([{"messages": MESSAGES, "reward": number} for number in (0, 1)])
    if form == "parquet":
        pl.DataFrame(table).write_parquet(folder / "train-00000-of-00001.parquet")
    else:
        file = pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb")
        with file, pa.ipc.new_stream(file, table.schema) as written:
            written.write_table(table)
    for name in ("README.md", "dataset_info.json", "state.json"):
        (folder / name).write_text("{}")
    counts = imported_folder(store, folder)
    assert counts.places == []
    frame, scores = found(store)
    assert [row[0] for row in rows(frame)] == ["agent", "llm", "tool"] * 2
    assert sorted(scores) == [("", "reward", 0.0), ("", "reward", 1.0)]


def imported_folder(store: Store, folder: Path) -> Any:
    return import_files(store, list_files(folder), lambda _: None)


def test_a_csv_of_langfuse(store: Store, tmp_path: Path) -> None:
    records = list(map(snake, [GENERATION, TOOL, TRACE, *SCORES]))
    path = tmp_path / "export.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, sorted({key for record in records for key in record}))
        writer.writeheader()
        for record in records:
            cells = {
                key: json.dumps(value) if isinstance(value, dict | list) else value
                for key, value in record.items()
            }
            writer.writerow(cells)
    assert imported(store, path).places == []
    assert calls(store) == (EXPECTED, [("", "thumbs", 1.0), ("get_weather", "useful", 0.25)])


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
def test_a_damaged_table(store: Store, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"PAR1 this is no table")
    counts = imported(store, path)
    assert counts.unreadable == 1
    assert counts.places[0].startswith(f"{path}, row 1: it is damaged: ")


def test_a_record_of_another_form_is_counted(store: Store, tmp_path: Path) -> None:
    broken = {key: value for key, value in weave(2, "call").items() if key != "id"}
    path = write(tmp_path / "calls.jsonl", weave(1, "agent"), broken)
    counts = imported(store, path)
    assert (counts.stored, counts.unreadable) == (1, 1)
    assert "it is no record of Weave that ltrain knows: KeyError('id')" in counts.places[0]
