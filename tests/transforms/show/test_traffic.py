"""Traces and sessions of traffic without ltrain's identity are shown as trees of calls."""

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from rich.console import Console
from tests.otlp import insert_otlp, open_empty_store

from ltrain_collector.feedback import Feedback, to_request
from ltrain_collector.store import Store
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.show import look_up, print_shown, write_page
from ltrain_transforms.show.tree import RolloutTree

NOON = 1_790_000_000_000_000_000
FIRST, SECOND = "aa11" + "0" * 28, "aa22" + "0" * 28


@pytest.fixture
def address(tmp_path: Path, scene: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a store with two requests of one session, and one rollout."""
    monkeypatch.chdir(tmp_path)
    request = ExportTraceServiceRequest()
    scoped = request.resource_spans.add().scope_spans.add()
    for number, trace in enumerate((FIRST, SECOND), 1):
        for part, (name, kind) in enumerate((("chat", "chat"), ("search", "execute_tool"))):
            span = scoped.spans.add(name=name)
            span.start_time_unix_nano = NOON + number * 10**9 + part * 10**6
            span.end_time_unix_nano = span.start_time_unix_nano + 10**5
            span.trace_id = bytes.fromhex(trace)
            span.span_id = (number * 16 + part).to_bytes(8, "big")
            text = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "hi"}]}])
            for key, value in (
                ("gen_ai.operation.name", kind),
                ("gen_ai.conversation.id", "chat-7"),
                (
                    "gen_ai.tool.name" if part else "gen_ai.input.messages",
                    "search" if part else text,
                ),
            ):
                span.attributes.add(key=key).value.string_value = value
    rollout = scene.attempt()
    rollout.llm()
    rollout.close()
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, request.SerializeToString())
        insert_otlp(store, scene.request())
        thumb = Feedback(trace=FIRST, value=1.0)
        insert_otlp(store, to_request([thumb], NOON + 10**12).SerializeToString())
    return f"chdb://{tmp_path}/store"


def shown(identifier: str, dsn: str, tmp_path: Path) -> RolloutTree:
    tree = look_up(identifier, home=tmp_path, dsn=dsn)
    assert isinstance(tree, RolloutTree)
    return tree


def names(tree: RolloutTree) -> list[list[str]]:
    return [[step.call["name"] for step in attempt.steps] for attempt in tree.attempts]


@pytest.mark.parametrize("identifier", [FIRST, "aa11", "trace:aa1"])
def test_a_trace_is_a_tree_with_its_feedback(address: str, tmp_path: Path, identifier: str) -> None:
    tree = shown(identifier, address, tmp_path)
    assert tree.title == f"trace {FIRST}"
    assert names(tree) == [["chat", "search"]]
    [attempt] = tree.attempts
    assert [(reward.rule, reward.value) for reward in attempt.rewards] == [("reward", 1.0)]
    assert set(tree.data) >= {"trace", "calls", "executions"}


def test_a_session_has_the_calls_of_its_traces(address: str, tmp_path: Path) -> None:
    tree = shown("chat-7", address, tmp_path)
    assert tree.title == "session chat-7"
    assert names(tree) == [["chat", "search", "chat", "search"]]


def test_the_trace_of_a_rollout_shows_the_rollout(address: str, tmp_path: Path, scene: Any) -> None:
    [rollout] = scene.attempts
    tree = shown(rollout.trace, address, tmp_path)
    assert tree.title == f"rollout {rollout.identity.rollout}"


def test_the_id_of_a_span_shows_its_trace_or_rollout(
    address: str, tmp_path: Path, scene: Any
) -> None:
    assert shown(f"{2 * 16 + 1:016x}", address, tmp_path).title == f"trace {SECOND}"
    [rollout] = scene.attempts
    span = rollout.spans[0].span
    title = f"rollout {rollout.identity.rollout}"
    assert shown(span, address, tmp_path).title == title
    assert shown(f"span:{span}", address, tmp_path).title == title
    with pytest.raises(NothingToShow, match="a span of that id in"):
        look_up(f"span:{span[:8]}", home=tmp_path, dsn=address)


def add_session(address: str, session: str) -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(name="chat")
    span.trace_id, span.span_id = bytes.fromhex("ef" * 16), bytes.fromhex("ef" * 8)
    span.start_time_unix_nano = span.end_time_unix_nano = NOON
    for key, value in (("gen_ai.operation.name", "chat"), ("gen_ai.conversation.id", session)):
        span.attributes.add(key=key).value.string_value = value
    with Store.open(address) as store:
        insert_otlp(store, request.SerializeToString())


def test_a_whole_session_id_comes_before_the_beginning_of_a_trace_id(
    address: str, tmp_path: Path
) -> None:
    add_session(address, "aa1")
    assert shown("aa1", address, tmp_path).title == "session aa1"


def test_the_beginning_of_a_trace_and_of_a_session_is_ambiguous(
    address: str, tmp_path: Path
) -> None:
    add_session(address, "aa1-talk")
    with pytest.raises(NothingToShow, match=rf"of the trace {FIRST} and of the session aa1-talk"):
        look_up("aa1", home=tmp_path, dsn=address)
    assert shown("session:aa1", address, tmp_path).title == "session aa1-talk"


def test_a_trace_is_printed_and_written_as_a_page(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = shown("aa22", address, tmp_path)
    print_shown(tree, Console(width=100))
    printed = capsys.readouterr().out
    assert f"trace {SECOND}" in printed and "search" in printed
    write_page(tree, tmp_path / "page.html")
    assert f"trace {SECOND}" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("identifier", "message"),
    [
        ("aa", "'aa' is the beginning of 2 trace ids"),
        ("session:aa11", "Searched for a session whose id begins so"),
        ("nothing", "a trace whose id begins so.*`ltrain traces` lists"),
    ],
)
def test_an_id_that_names_nothing_is_refused(
    address: str, tmp_path: Path, identifier: str, message: str
) -> None:
    with pytest.raises(NothingToShow, match=message):
        look_up(identifier, home=tmp_path, dsn=address)


def test_a_trace_without_a_call_is_shown_too(address: str, tmp_path: Path) -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(name="GET /")
    span.trace_id, span.span_id = bytes.fromhex("ab" * 16), bytes.fromhex("cd" * 8)
    span.start_time_unix_nano = span.end_time_unix_nano = NOON
    with Store.open(address) as store:
        insert_otlp(store, request.SerializeToString())
    tree = shown(f"trace:{'ab' * 16}", address, tmp_path)
    assert (names(tree), tree.other_spans) == ([[]], 1)
