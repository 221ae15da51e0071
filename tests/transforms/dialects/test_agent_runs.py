"""What OpenInference writes of AutoGen and smolagents, and MCP's tools below a framework's."""

import json
from typing import Any

from tests.transforms.made import Row, span, spans

from ltrain_transforms.calls import calls

AUTOGEN = "openinference.instrumentation.autogen_agentchat"
SMOLAGENTS = "openinference.instrumentation.smolagents"
KIND = "openinference.span.kind"
GEN_AI = "gen_ai.operation.name"
MESSAGE = (
    "id='6ef8' source={source!r} models_usage=None metadata={{}} "
    "created_at=datetime.datetime(2026, 11, 21) content={content!r} {more}type='{kind}'"
)


def rows(*made: Row) -> list[dict[str, Any]]:
    call_rows, drops = calls(spans(*made))
    assert drops.is_empty()
    return call_rows.to_dicts()


def run_input(*messages: str) -> dict[str, str]:
    return {
        KIND: "AGENT",
        "graph.node.id": "desk",
        "input.value": json.dumps({"messages": [*messages]}),
    }


def smol(kind: str, value: Any, **more: str) -> dict[str, str]:
    return {KIND: kind, "input.value": json.dumps(value), **more}


def test_two_spans_of_an_autogen_agent_are_one_call() -> None:
    message = MESSAGE.format(source="user", content="It's\n'late'?", more="", kind="TextMessage")
    more = "target='desk' context=[] "
    forward = MESSAGE.format(source="a b", content='"Yours"', more=more, kind="HandoffMessage")
    (agent,) = rows(
        span("invoke_agent desk", {GEN_AI: "invoke_agent", "gen_ai.agent.name": "desk"}, at=(0, 9)),
        span(
            "desk.on_messages_stream",
            run_input(message, forward),
            parent="invoke_agent desk",
            at=(1, 8),
            scope=AUTOGEN,
        ),
    )
    assert (agent["name"], agent["agent"], agent["node"]) == ("desk", "desk", None)
    assert json.loads(agent["input"]) == {
        "messages": [
            {"role": "user", "content": "It's\n'late'?"},
            {"role": "a b", "content": '"Yours"'},
        ]
    }
    assert agent["source_spans"] == ["invoke_agent desk", "desk.on_messages_stream"]


def test_messages_that_are_no_text_stay_as_they_were_written() -> None:
    image = MESSAGE.format(source="user", content=["A", 1], more="", kind="MultiModalMessage")
    (agent,) = rows(span("desk.on_messages_stream", run_input(image), scope=AUTOGEN))
    assert agent["input"] == json.dumps({"messages": [image]})


def test_an_agent_that_calls_itself_is_two_calls() -> None:
    attributes = {GEN_AI: "invoke_agent", "gen_ai.agent.name": "desk"}
    assert (
        len(rows(span("outer", attributes, at=(0, 9)), span("inner", attributes, parent="outer")))
        == 2
    )


def test_a_run_of_smolagents() -> None:
    inputs = {"task": "Go.", "stream": True, "reset": True, "max_steps": None}
    streamed = "ChatMessageStreamDelta(content='Th')FinalAnswerStep(output='There.')"
    weather = smol(
        "TOOL",
        {"args": ["Bath"], "sanitize_inputs_outputs": False, "kwargs": {"unit": "C"}},
        **{"tool.name": "weather", "tool.parameters": '{"city": {}, "unit": {}}'},
    )
    agent, tool = rows(
        span(
            "guide.run",
            smol("AGENT", inputs, **{"output.value": streamed}),
            at=(0, 9),
            scope=SMOLAGENTS,
        ),
        span("Step 1", smol("CHAIN", {}), parent="guide.run", at=(1, 8), scope=SMOLAGENTS),
        span("SimpleTool", weather, parent="Step 1", at=(2, 3), scope=SMOLAGENTS),
    )
    assert (agent["agent"], agent["input"], agent["output"]) == ("guide", "Go.", "There.")
    assert (tool["agent"], tool["node"], tool["parent_id"]) == ("guide", None, "guide.run")
    assert tool["arguments"] == '{"city": "Bath", "unit": "C"}'


def test_parallel_tools_without_ids_are_told_apart_by_their_arguments() -> None:
    message = [
        {"type": "tool_call", "id": city, "name": "weather", "arguments": {"city": city}}
        for city in ("Paris", "Rome")
    ]
    attributes = json.dumps([{"role": "assistant", "parts": message}])
    tool = {GEN_AI: "execute_tool", "gen_ai.tool.name": "weather"}
    arguments = "gen_ai.tool.call.arguments"
    _, *tools = rows(
        span("llm", {GEN_AI: "chat", "gen_ai.output.messages": attributes}),
        span("first", {**tool, arguments: '{"city": "Rome"}'}, at=(2, 4)),
        span("second", {KIND: "TOOL", "tool.name": "weather", "input.value": "Paris"}, at=(3, 4)),
    )
    assert [(call["call_id"], call["tool_call_id"]) for call in tools] == [
        ("first", "Rome"),
        ("second", "Paris"),
    ]


def test_an_mcp_tool_below_a_frameworks_tool_is_one_call() -> None:
    tool = {GEN_AI: "execute_tool", "gen_ai.tool.name": "places_weather"}
    mcp = {"mcp.method.name": "tools/call", "gen_ai.tool.name": "weather"}
    failed = {**mcp, "error.type": "tool_error"}
    (call,) = rows(
        span("tool", tool, at=(0, 9)),
        span("client", mcp, parent="tool", at=(1, 8), scope="ltrain.instrument"),
        span("server", failed, parent="client", at=(2, 7), scope="mcp-python-sdk", process="other"),
    )
    assert (call["status"], call["error_type"]) == ("error", "tool_error")
    inner = {GEN_AI: "execute_tool", "gen_ai.tool.name": "weather"}
    assert len(rows(span("tool", tool, at=(0, 9)), span("in", inner, parent="tool"))) == 2


def test_a_stream_without_usage_has_no_counts() -> None:
    attributes = {KIND: "LLM", "llm.token_count.prompt": "0", "llm.token_count.completion": "0"}
    (llm,) = rows(span("llm", attributes))
    assert (llm["input_tokens"], llm["output_tokens"]) == (None, None)
