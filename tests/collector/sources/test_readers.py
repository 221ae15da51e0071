"""Session files of coding agents and chats in JSONL, through `ltrain import` and the transforms."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.otlp import open_empty_store

from ltrain_collector.store import Store
from ltrain_collector.transfer.importing import ImportCounts, import_files
from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source
from ltrain_transforms.rewards import read_evaluations
from ltrain_transforms.source import Selection, read_spans

DATA = Path(__file__).parent / "data"
COLUMNS = ("kind", "name", "agent", "status", "input_tokens", "output_tokens", "requested_by")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_empty_store(tmp_path / "store") as opened:
        yield opened


def imported(store: Store, path: Path) -> ImportCounts:
    return import_files(store, [path], lambda progress: None)


def found(store: Store) -> pl.DataFrame:
    return calls(read_spans(store, Source(execution="session"), Selection())[0])[0]


def rows(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Return `COLUMNS`; the requester is a number of the list."""
    order = {call: number for number, call in enumerate(frame["call_id"])}
    return [(*row[:-1], order.get(row[-1])) for row in frame.select(COLUMNS).iter_rows()]


def parts(text: str) -> list[tuple[str, list[str]]]:
    """Return the role and the types of the parts of each message."""
    return [(each["role"], [part["type"] for part in each["parts"]]) for each in json.loads(text)]


def test_a_session_of_codex(store: Store) -> None:
    counts = imported(store, DATA / "codex__session-0.171.0.jsonl")
    assert (counts.records, counts.stored, counts.unreadable) == (6, 6, 0)
    frame = found(store)
    assert rows(frame) == [
        ("agent", "codex", "codex", "ok", None, None, None),
        ("llm", "teacher", "codex", "ok", 208, 30, None),
        ("tool", "exec_command", "codex", "ok", None, None, 1),
        ("llm", "teacher", "codex", "ok", 213, 30, None),
        ("tool", "exec_command", "codex", "error", None, None, 3),
        ("llm", "teacher", "codex", "ok", 219, 30, None),
    ]
    assert frame["cached_tokens"][1] == 100
    assert parts(frame["input"][5]) == [
        ("system", ["text"]),
        ("user", ["text"]),
        ("assistant", ["tool_call"]),
        ("tool", ["tool_call_response"]),
        ("assistant", ["tool_call"]),
        ("tool", ["tool_call_response"]),
    ]
    assert json.loads(frame["output"][5])[0]["parts"][0]["content"] == "Repaired."
    assert frame["execution_id"].unique().to_list() == ["01a22b50-b718-7b93-8e74-380b781e75a7"]


def test_older_files_of_codex_have_tokens_and_exit_codes_elsewhere(
    store: Store, tmp_path: Path
) -> None:
    def record(number: int, kind: str, **payload: Any) -> str:
        time = f"2025-09-01T10:00:{number:02}Z"
        return json.dumps({"timestamp": time, "type": kind, "payload": payload}) + "\n"

    usage = {"input_tokens": 5, "output_tokens": 3, "cached_input_tokens": 0}
    result = json.dumps({"output": "no such file", "metadata": {"exit_code": 1}})
    action = {"type": "exec", "command": ["ls", "x"]}
    user = [{"type": "input_text", "text": "list"}]
    thought = [{"type": "summary_text", "text": "think"}]
    item = "response_item"
    path = tmp_path / "rollout.jsonl"
    path.write_text(
        record(0, "session_meta", id="s-1", instructions="Be brief.")
        + record(1, item, type="message", role="user", content=user)
        + record(2, item, type="reasoning", summary=thought)
        + record(3, item, type="local_shell_call", call_id="c1", action=action)
        + record(4, item, type="function_call_output", call_id="c1", output=result)
        + record(5, "event_msg", type="token_count", info={"last_token_usage": usage})
        + record(6, "compacted", message="They listed x.")
        + record(7, item, type="message", role="assistant", content=[{"text": "No x."}])
    )
    assert imported(store, path).unreadable == 0
    frame = found(store)
    assert rows(frame) == [
        ("agent", "codex", "codex", "ok", None, None, None),
        ("llm", "unknown", "codex", "ok", 5, 3, None),
        ("tool", "local_shell", "codex", "error", None, None, 1),
        ("llm", "unknown", "codex", "ok", None, None, None),
    ]
    assert frame["result"][2] == "no such file"
    assert parts(frame["output"][1]) == [("assistant", ["reasoning", "tool_call"])]
    assert parts(frame["input"][3]) == [("system", ["text"]), ("user", ["text"])]


def test_a_session_of_claude_code(store: Store) -> None:
    counts = imported(store, DATA / "claude_code__session.jsonl")
    assert (counts.records, counts.unreadable) == (7, 0)
    frame = found(store)
    assert rows(frame) == [
        ("agent", "claude-code", "claude-code", "ok", None, None, None),
        ("llm", "claude-x", "claude-code", "ok", 114, 7, None),
        ("tool", "Bash", "claude-code", "error", None, None, 1),
        ("llm", "claude-x", "claude-code", "ok", 114, 7, None),
        ("tool", "Task", "claude-code", "ok", None, None, 3),
        ("llm", "claude-x", "sub-agent", "ok", 114, 7, None),
        ("llm", "claude-x", "claude-code", "ok", 114, 7, None),
    ]
    assert parts(frame["output"][1]) == [("assistant", ["reasoning", "text", "tool_call"])]
    assert parts(frame["input"][5]) == [("user", ["text"])]
    roles = [role for role, _ in parts(frame["input"][6])]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]
    assert frame["finish_reason"][1] == "tool_use"


def test_chats_are_conversations_with_their_scores(store: Store) -> None:
    assert imported(store, DATA / "chats.jsonl").unreadable == 0
    frame = found(store).sort("execution_id", "seq")
    of_a = frame.filter(execution_id="a")
    assert rows(of_a) == [
        ("agent", "chat", "chat", "ok", None, None, None),
        ("llm", "m", "chat", "ok", None, None, None),
        ("tool", "get_weather", "chat", "ok", None, None, 1),
        ("llm", "m", "chat", "ok", None, None, None),
    ]
    assert parts(of_a["input"][3])[0] == ("system", ["text"])
    other = frame.filter(pl.col("execution_id") != "a")
    assert other["kind"].to_list() == ["agent", "llm"]
    spans, _ = read_spans(store, Source(execution="session"), Selection())
    evaluations, faults = read_evaluations(spans, frame)
    named = evaluations.select("execution_id", "name", "source", "value")
    assert sorted(named.rows()) == [("a", "reward", "agent", 1.0), ("a", "tone", "agent", 0.5)]
    assert faults.is_empty()


@pytest.mark.parametrize("name", ["codex__session-0.171.0", "claude_code__session", "chats"])
def test_a_file_that_grows_is_stored_once(store: Store, tmp_path: Path, name: str) -> None:
    source, grown = DATA / f"{name}.jsonl", tmp_path / "grown.jsonl"
    lines = source.read_text().splitlines(keepends=True)
    grown.write_text("".join(lines[: len(lines) // 2]))
    shutil.copystat(source, grown)
    imported(store, grown)  # while the agent still works
    shutil.copy2(source, grown)
    whole, again = imported(store, grown), imported(store, grown)
    assert sum(again.new_rows.values()) == 0
    frame = found(store)
    assert frame["call_id"].n_unique() == frame.height
    assert whole.records == frame.height + (2 if name == "chats" else 0)  # evaluations


def test_a_damaged_record_is_named_and_the_others_are_stored(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    lines = (DATA / "codex__session-0.171.0.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:8], '{"timestamp": "x", "type": "y"}\n', *lines[8:], '{"ti']))
    counts = imported(store, path)
    assert (counts.stored, counts.unreadable) == (6, 2)
    assert counts.places[0].startswith(f"{path}:9: it is no record of Codex that ltrain knows: ")
    assert "truncated" in counts.places[1]
