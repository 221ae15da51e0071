"""Calls without a parent are one conversation if each repeats the one before and its answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ltrain_instrument.conversations import (
    INPUT,
    MAX_EQUAL,
    MAX_HISTORIES,
    OUTPUT,
    ConversationChain,
    ConversationProcessor,
)
from ltrain_instrument.setting_values import JoinCalls
from ltrain_instrument.settings import CONVERSATIONS

if TYPE_CHECKING:
    from tests.instrument.conftest import Sink, Start

Message = dict[str, Any]


def message(role: str, text: str, **more: Any) -> Message:
    return {"role": role, "parts": [{"type": "text", "content": text}], **more}


def call(arguments: Any) -> Message:
    return {
        "role": "assistant",
        "parts": [{"type": "tool_call", "id": "c", "name": "add", "arguments": arguments}],
    }


ASKED = [message("system", "You add."), message("user", "1 + 1?")]
RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "2"}]}


def test_a_call_that_repeats_another_and_its_answer_continues_it() -> None:
    chain = ConversationChain()
    first = chain.add(ASKED, [message("assistant", "2", finish_reason="stop")])
    longer = [*ASKED, message("assistant", " 2 "), message("user", "and 2?")]
    assert chain.add(longer, [message("assistant", "4")]) == first
    assert chain.add([message("user", "other")], [message("assistant", "x")]) != first
    assert chain.add(ASKED, [message("assistant", "3")]) != first


@pytest.mark.parametrize("repeated", ['{"a":1,"b":2}', '{ "b": 2, "a": 1 }', {"b": 2, "a": 1}])
def test_a_clients_form_of_arguments_does_not_matter(repeated: Any) -> None:
    chain = ConversationChain()
    first = chain.add(ASKED, [call({"a": 1, "b": 2})])
    assert chain.add([*ASKED, call(repeated), RESULT], []) == first


def test_reasoning_that_a_client_leaves_out_does_not_matter() -> None:
    chain = ConversationChain()
    answer = message("assistant", "2")
    answer["parts"] = [{"type": "reasoning", "content": "hm"}, *answer["parts"]]
    first = chain.add(ASKED, [answer])
    assert chain.add([*ASKED, message("assistant", "2"), message("user", "?")], []) == first


def test_an_edited_question_is_a_fork_of_its_conversation() -> None:
    chain = ConversationChain()
    answer = message("assistant", "2")
    first = chain.add(ASKED, [answer])
    turns = [[*ASKED, answer, message("user", text)] for text in ("a", "b")]
    assert [chain.add(turn, [message("assistant", "ok")]) for turn in turns] == [first, first]


def test_equal_conversations_at_a_time_stay_two() -> None:
    chain = ConversationChain()
    answer = message("assistant", "2")
    ids = [chain.add(ASKED, [answer]) for _ in range(2)]
    assert len(set(ids)) == 2
    turns = [[*ASKED, answer, message("user", text)] for text in ("a", "b")]
    assert [chain.add(turn, []) for turn in turns] == ids


def test_chains_of_other_users_never_meet() -> None:
    answer = message("assistant", "2")
    for seed in (b"a", b"b"):
        ConversationChain(seed).add(ASKED, [answer])
    one, other = (ConversationChain(seed) for seed in (b"a", b"b"))
    one.add(ASKED, [answer])
    other._open.update(one._open)
    assert other.add([*ASKED, answer], []) not in {id for ids in one._open.values() for id in ids}


def test_histories_are_bounded() -> None:
    chain = ConversationChain()
    for number in range(MAX_HISTORIES + 10):
        chain.add([message("user", str(number))], [message("assistant", "x")])
    assert len(chain._open) == MAX_HISTORIES
    for _ in range(1000):
        chain.add(ASKED, [message("assistant", "2")])
    assert max(map(len, chain._open.values())) == MAX_EQUAL


@given(st.lists(st.lists(st.text(max_size=3), min_size=1, max_size=4), max_size=5))
def test_interleaved_conversations_are_not_mixed(turns: list[list[str]]) -> None:
    chain = ConversationChain()
    histories = [[message("system", f"user {number}")] for number in range(len(turns))]
    ids: list[set[str]] = [set() for _ in turns]
    for turn in range(4):
        for number, texts in enumerate(turns):
            if turn < len(texts):
                answer = message("assistant", f"answer {turn}")
                history = [*histories[number], message("user", texts[turn])]
                ids[number].add(chain.add(history, [answer]))
                histories[number] = [*history, answer]
    assert all(len(each) == 1 for each in ids)
    assert len(set().union(*ids)) == len(turns)


def spans_of(*values: dict[str, Any], parent: bool = False) -> list[str | None]:
    """Return the conversation of spans with these attributes."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(ConversationProcessor())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    for attributes in values:
        if parent:
            with tracer.start_as_current_span("request"):
                tracer.start_span("chat", attributes=attributes).end()
        else:
            tracer.start_span("chat", attributes=attributes).end()
    found = [span.attributes or {} for span in exporter.get_finished_spans() if span.name == "chat"]
    return [
        None if (id := each.get("gen_ai.conversation.id")) is None else str(id) for each in found
    ]


ANSWER = [message("assistant", "2")]
FIRST = {INPUT: json.dumps(ASKED), OUTPUT: json.dumps(ANSWER)}
SECOND = {INPUT: json.dumps([*ASKED, *ANSWER, message("user", "?")]), OUTPUT: "[]"}


def test_spans_of_a_conversation_name_it() -> None:
    first, second = spans_of(FIRST, SECOND)
    assert first is not None
    assert first == second
    assert first.startswith("conv-")


def test_spans_with_a_parent_a_session_or_a_rollout_keep_what_they_have() -> None:
    assert spans_of(FIRST, SECOND, parent=True) == [None, None]
    assert spans_of(FIRST | {"session.id": "s"}, FIRST | {"ltrain.rollout.id": "r"}) == [None, None]
    assert spans_of(FIRST | {"gen_ai.conversation.id": "mine"}) == ["mine"]


@pytest.mark.parametrize("text", ["", "{", "1", "[1]", "null", "[" * 100_000])
def test_attributes_that_are_no_messages_are_left(text: str) -> None:
    assert spans_of({INPUT: text}) == [None]
    assert spans_of({INPUT: json.dumps(ASKED), OUTPUT: text})[0] is not None


def test_deeply_nested_arguments_do_not_fail_the_call() -> None:
    deep = '{"a":' * 900 + "1" + "}" * 900
    nested = FIRST | {OUTPUT: json.dumps([call(deep)])}
    assert len(spans_of(nested, FIRST)) == 2


def test_the_setting_switches_it_off() -> None:
    assert CONVERSATIONS.read({}) is JoinCalls.CONTENT
    assert CONVERSATIONS.read({CONVERSATIONS.name: "off"}) is JoinCalls.OFF
    with pytest.raises(ValueError, match="content, process, off is expected"):
        CONVERSATIONS.read({CONVERSATIONS.name: "on"})


@pytest.mark.parametrize(("end", "status"), [("return", 0), ("error", 1), ("signal", -15)])
def test_a_process_can_be_one_trace(start: Start, sink: Sink, end: str, status: int) -> None:
    agent = start("steps", end, LTRAIN_CONVERSATIONS="process")
    assert agent.wait()[0] == status
    [root] = sink.wait("steps.py")
    assert (root.parent, len(sink.named("steps.py"))) == ("", 1)
    for name in ("main", "thread", "fork", "child"):
        [span] = sink.named(name)
        assert (span.trace, span.parent) == (root.trace, root.id)


def test_a_process_below_a_caller_opens_no_span(start: Start, sink: Sink) -> None:
    caller = f"00-{1:032x}-{2:016x}-01"
    agent = start("steps", "return", LTRAIN_CONVERSATIONS="process", TRACEPARENT=caller)
    assert agent.wait()[0] == 0
    assert sink.named("steps.py") == []
    assert {each.parent for each in sink.wait("main")} == {f"{2:016x}"}


def test_without_the_switch_spans_side_by_side_are_traces(start: Start, sink: Sink) -> None:
    assert start("steps", "return").wait()[0] == 0
    assert len({each.trace for each in sink.spans if each.scope == "agent"}) == 4
