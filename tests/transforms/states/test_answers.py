"""Which text is the answer, and which results are written."""

import json
from typing import Any

import pytest
from tests.transforms.made import span, spans
from tests.transforms.states.conftest import TraceBuilder, assistant, result, user

from ltrain_transforms.calls import calls
from ltrain_transforms.states.from_calls import states


def values(trace: TraceBuilder, variable: str) -> list[Any]:
    return [json.loads(value) for _, name, value, _ in trace.written if name == variable]


@pytest.mark.parametrize("first", [False, True])
def test_a_call_outside_all_agents_is_not_the_answer(trace: TraceBuilder, first: bool) -> None:
    def background() -> None:
        trace.llm([user("Title for: hi")], assistant("Greeting"))

    if first:
        background()
    trace.llm([user("hi")], assistant("Hello."), agent="shop")
    if not first:
        background()
    assert values(trace, "answer") == ["Hello."]
    assert values(trace, "shop.output") == ["Hello."]
    assert values(trace, "output") == ["Greeting"]


def test_a_call_without_agents_is_the_answer_although_its_node_is_named(
    trace: TraceBuilder,
) -> None:
    trace.llm([user("hi")], assistant("Hello."), agent="write", node="write")
    trace.llm([user("bye")], assistant("Bye."))
    assert values(trace, "answer") == ["Hello.", "Bye."]


def test_a_stream_that_was_left_is_no_answer_but_its_requests_were_read(
    trace: TraceBuilder,
) -> None:
    trace.llm([user("hi")], assistant("One"), delivered=False)
    assert (trace.written, trace.actions) == ([(0, "input", '"hi"', None)], [None])
    request = {"id": "c", "name": "w", "arguments": {}}
    trace.llm([user("hi"), assistant("Two")], assistant("", request), delivered=False)
    trace.llm([user("hi"), assistant("Two")], assistant("Three"), delivered=True)
    assert trace.actions == [None, "tool_request", "answer"]
    assert values(trace, "answer") == ["Three"]


def test_results_without_a_span_are_written_once_each(trace: TraceBuilder) -> None:
    history = [user("x")]
    for number in range(3):
        request = {"id": f"c{number}", "name": "w", "arguments": {"n": number}}
        trace.llm(list(history), assistant("", request))
        history += [assistant("", request), result(f"c{number}", "same")]
    trace.llm(list(history), assistant("done"))
    trace.llm([*history, assistant("done"), user("more")], assistant("done"))
    assert values(trace, "tool.w.result") == ["same"] * 3


def test_a_task_of_crewai_is_its_agents_input() -> None:
    scope = "openinference.instrumentation.crewai"
    crew = {"openinference.span.kind": "CHAIN"}
    agent = {
        "openinference.span.kind": "AGENT",
        "graph.node.id": "guide",
        "output.value": '{"description": "Where to?", "raw": "Home."}',
    }
    rows, _ = calls(
        spans(
            span("c", crew, at=(0, 9), scope=scope, name="Crew.kickoff"),
            span("a", agent, parent="c", at=(1, 8), scope=scope, name="guide.execute"),
        )
    )
    written = states(rows)[0].select("variable", "value").rows()
    assert ("guide.input", '"Where to?"') in written
    assert ("guide.output", '"Home."') in written
