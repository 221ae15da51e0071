"""The variables of frameworks that have no graph state, and of graphs inside of others."""

import json
from typing import Any

from tests.transforms.states.conftest import MS, TraceBuilder, assistant, result, system, user

from ltrain_transforms.states.from_calls import states

TASK = user("What is the weather in Paris?")


def weather_request(id: str, city: str = "Paris") -> dict[str, Any]:
    return {"id": id, "name": "get_weather", "arguments": {"city": city}}


def loop(trace: TraceBuilder, id: str = "call_1") -> list[str]:
    """OpenAI's SDK in a loop."""
    history = [TASK, assistant("", weather_request(id)), result(id, "sunny, 21 C")]
    first = trace.llm(history[:1], history[1])
    tool = trace.tool("get_weather", {"city": "Paris"}, "sunny, 21 C", tool_call_id=id)
    return [first, tool, trace.llm(history, assistant("It is sunny."))]


def test_a_plain_loop(trace: TraceBuilder) -> None:
    first, tool, last = loop(trace)
    assert trace.written == [
        (0, "input", '"What is the weather in Paris?"', None),
        (1, "tool.get_weather.arguments", '{"city":"Paris"}', first),
        (2, "tool.get_weather.result", '"sunny, 21 C"', tool),
        (3, "answer", '"It is sunny."', last),
    ]


def test_tools_that_nobody_traced_are_read_off_the_messages(trace: TraceBuilder) -> None:
    history = [TASK, assistant("", weather_request("call_1")), result("call_1", "sunny, 21 C")]
    first, last = trace.llm(history[:1], history[1]), trace.llm(history, assistant("It is sunny."))
    assert trace.written == [
        (0, "input", '"What is the weather in Paris?"', None),
        (1, "tool.get_weather.arguments", '{"city":"Paris"}', first),
        (1, "tool.get_weather.result", '"sunny, 21 C"', None),
        (2, "answer", '"It is sunny."', last),
    ]
    assert trace.reads[last] == ["input", "tool.get_weather.arguments", "tool.get_weather.result"]


def test_a_tool_span_without_content_is_still_the_writer(trace: TraceBuilder) -> None:
    """AutoGen's own spans name the call and hold nothing of it."""
    history = [TASK, assistant("", weather_request("call_1")), result("call_1", "18")]
    trace.llm(history[:1], history[1], agent="weather_agent")
    tool = trace.call("tool", "get_weather", tool_call_id="call_1", agent="weather_agent")
    last = trace.llm(history, assistant("It is mild."), agent="weather_agent")
    named = {variable: (value, by) for _, variable, value, by in trace.written}
    assert named["tool.get_weather.result"] == ('"18"', tool)
    assert "tool.get_weather.result" in trace.reads[last]  # by its id: the text is too short
    assert named["weather_agent.output"] == named["answer"] == ('"It is mild."', last)


def test_agents_that_hand_over_are_told_apart(trace: TraceBuilder) -> None:
    """OpenAI Agents: agents side by side in a workflow that says nothing itself."""
    flow = trace.call("agent", "Agent workflow", agent="Agent workflow", end=10**9)
    trace.clock = MS
    for agent, text in (("triage", "A question of weather."), ("weather", "It is sunny.")):
        run = trace.call("agent", agent, agent=agent, parent_id=flow, end=trace.clock + 100 * MS)
        trace.clock = trace.rows[-1]["start"] + MS
        trace.llm([system(f"You are {agent}."), TASK], assistant(text), agent=agent, parent_id=run)
        trace.clock += 200 * MS
    written = [row[:3] for row in trace.written]
    assert written == [
        (2, "input", '"What is the weather in Paris?"'),
        (3, "triage.output", '"A question of weather."'),
        (5, "weather.output", '"It is sunny."'),
        (5, "answer", '"It is sunny."'),
    ]


def test_a_sub_agent_in_a_tool(trace: TraceBuilder) -> None:
    lead = trace.call("agent", "lead", agent="lead", input=TASK["parts"][0]["content"], end=10**9)
    trace.clock = MS
    asks = assistant("", {"id": "c", "name": "ask_local", "arguments": {"about": "Paris weather"}})
    trace.llm([TASK], asks, agent="lead", parent_id=lead)
    tool = trace.tool(
        "ask_local", {"about": "Paris weather"}, "Sunny, say the locals.",
        tool_call_id="c", parent_id=lead, end=trace.clock + 100 * MS,
    )  # fmt: skip
    trace.clock = trace.rows[-1]["start"] + MS
    run = trace.call(
        "agent", "local", agent="local", parent_id=tool, input="Paris weather",
        output="Sunny, say the locals.", end=trace.clock + 90 * MS,
    )  # fmt: skip
    trace.clock = trace.rows[-1]["start"] + MS
    inner = trace.llm(
        [user("Paris weather")], assistant("Sunny, say the locals."), agent="local", parent_id=run
    )
    by = {(variable, value): writer for _, variable, value, writer in trace.written}
    assert by["input", '"What is the weather in Paris?"'] is None
    assert by["local.input", '"Paris weather"'] is None
    assert by["local.output", '"Sunny, say the locals."'] == inner
    assert by["tool.ask_local.result", '"Sunny, say the locals."'] == tool


def test_tools_in_parallel_do_not_see_each_others_results(trace: TraceBuilder) -> None:
    both = assistant("", weather_request("a"), weather_request("b", "Rome"))
    first = trace.llm([TASK], both)
    begin = trace.clock
    for id, city, sky in (("a", "Paris", "sunny there"), ("b", "Rome", "rainy there")):
        times = {"start": begin, "end": begin + (20 if id == "a" else 30) * MS}
        trace.tool("get_weather", {"city": city}, sky, tool_call_id=id, **times)
    assert [(t, value) for t, name, value, _ in trace.written if name.endswith("result")] == [
        (3, '"sunny there"'),
        (3, '"rainy there"'),
    ]
    arguments = [row for row in trace.written if row[1].endswith("arguments")]
    assert [(t, by) for t, _, _, by in arguments] == [(1, first), (1, first)]


def test_a_failed_tool_leaves_its_error(trace: TraceBuilder) -> None:
    """MCP's client names the tool, and no call id."""
    tool = trace.call("tool", "get_weather", status="error", error_type="tool_error")
    assert trace.written == [(1, "tool.get_weather.result", '{"error":"tool_error"}', tool)]


def test_a_trace_without_content_has_no_variables(trace: TraceBuilder) -> None:
    call = trace.llm([], None, input=None)
    trace.call("tool", "t")
    written, observations, _ = states(trace.calls)
    assert written.is_empty()
    assert observations.row(0) == (call, [], None, None, 0)


def test_equal_observations_have_equal_digests_whatever_the_ids() -> None:
    one, other = TraceBuilder("one"), TraceBuilder("other")
    loop(one, "call_1")
    loop(other, "call_77")
    digests = [states(each.calls)[1]["state_digest"].to_list() for each in (one, other)]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 3


def message(text: str, id: str) -> dict[str, Any]:
    """A message of LangGraph's state."""
    return {"type": "human", "data": {"content": text, "id": id, "response_metadata": {"t": id}}}


def test_equal_graph_states_have_equal_digests_whatever_the_ids() -> None:
    digests = []
    for id in ("run-1", "run-2"):
        trace = TraceBuilder(id)
        trace.node("model", {"messages": [message("hello", id)], "step": 1})
        trace.llm([user("hello")], assistant("hi there"), node="model", agent="model")
        written, observations, _ = states(trace.calls)
        digests.append((observations["state_digest"].to_list(), written["digest"].to_list()))
        assert json.loads(written["value"][0]) == [message("hello", id)]
    assert digests[0] == digests[1]


def test_a_graph_inside_a_node_has_its_own_variables(trace: TraceBuilder) -> None:
    whole = trace.call("node", "LangGraph", output='{"q": "who?", "found": "me"}', end=10**9)
    trace.clock = MS
    times = {"parent_id": whole, "end": 500 * MS}
    outer = trace.node("research", {"q": "who?"}, **times)
    trace.clock = 2 * MS
    inner = trace.node("look", {"q": "where?"}, parent_id=outer)
    trace.node("read", {"q": "where?", "page": "me"}, parent_id=outer)
    assert trace.written == [
        (1, "q", '"who?"', None),
        (2, "research.q", '"where?"', None),
        (3, "research.page", '"me"', inner),
        (4, "found", '"me"', outer),
    ]


def test_a_branch_is_the_writer_whatever_other_branches_were_shown(trace: TraceBuilder) -> None:
    """A node that `Send` starts is shown an input of its own; a text of one key loses the key."""
    sky = trace.node("sky", {"city": "Rome"}, output="sunny")
    days = trace.node("days", {"city": "Rome"}, output='{"days": [1]}')
    trace.node("day", {"number": 1}, output="Monday")
    trace.node("end", {"city": "Rome", "sky": "sunny", "days": [1], "plan": "Monday"})
    written = {variable: by for _, variable, _, by in trace.written}
    assert written == {"city": None, "number": days, "sky": sky, "days": days, "plan": "e2"}


def test_traceloops_envelope_is_opened(trace: TraceBuilder) -> None:
    """Its spans are named after the operation, and their payloads hold the callback's."""
    for state in ({"q": "who?"}, {"q": "who?", "found": "me"}):
        payload = json.dumps({"inputs": state, "tags": [], "metadata": {"x": 1}, "kwargs": {}})
        trace.call("node", "execute_task look", node="look", input=payload)
    assert [row[:3] for row in trace.written] == [(0, "q", '"who?"'), (1, "found", '"me"')]


def test_parents_in_a_circle_are_no_error(trace: TraceBuilder) -> None:
    trace.call("agent", "a", agent="a", parent_id="e1", input="do it")
    trace.call("agent", "b", agent="b", parent_id="e0", input="do it too")
    trace.llm([TASK], assistant("It is sunny."), agent="a", parent_id="e1")
    assert [row[1] for row in trace.written] == [
        "a.input",
        "input",
        "b.input",
        "a.output",
        "answer",
    ]
