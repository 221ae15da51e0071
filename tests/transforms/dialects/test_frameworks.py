"""What OpenInference writes of frameworks, as the runs of tests/frameworks show it."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.transforms.made import span, spans

from ltrain_transforms.calls import calls

CREWAI = "openinference.instrumentation.crewai"
LLAMA_INDEX = "openinference.instrumentation.llama_index"
LITELLM = "openinference.instrumentation.litellm"
OPENAI = "opentelemetry.instrumentation.openai.v1"


def rows(*made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    call_rows, drops = calls(spans(*made))
    assert drops.is_empty()
    return {row["call_id"]: row for row in call_rows.to_dicts()}


def kind(name: str, attributes: Mapping[str, str] | None = None) -> dict[str, str]:
    return {"openinference.span.kind": name, **(attributes or {})}


def tool_requests(*tools: tuple[str, str, dict[str, str]]) -> dict[str, str]:
    """An answer of the client's that asks for tools: id, name and arguments of each."""
    parts = [
        {"type": "tool_call", "id": id_, "name": name, "arguments": arguments}
        for id_, name, arguments in tools
    ]
    output = json.dumps([{"role": "assistant", "parts": parts}])
    return {"gen_ai.operation.name": "chat", "gen_ai.output.messages": output}


def test_crewai() -> None:
    id_ = "0f422840-c01c-40fc-8f4e-5ee0e683984e"
    task = {
        "graph.node.id": "guide",
        "input.value": '{"agent": {"role": "guide"}, "context": "Sunny.", "tools": []}',
        "output.value": '{"description": "Where to?", "raw": "Home."}',
    }
    delegated = ("c1", "delegate_work_to_coworker", {"coworker": "nobody"})
    missing = "\nError executing tool. coworker mentioned not found"
    delegate = {"tool.name": "Delegate work to coworker", "output.value": missing}
    call_rows = rows(
        span("c", kind("CHAIN"), at=(0, 9), scope=CREWAI, name=f"Crew_{id_}.kickoff"),
        span("a", kind("AGENT", task), parent="c", at=(1, 8), scope=CREWAI, name="guide.run"),
        span("m", tool_requests(delegated), parent="a", at=(2, 3), scope=OPENAI),
        span("t", kind("TOOL", delegate), parent="a", at=(4, 5), scope=CREWAI),
        span("f", kind("CHAIN"), at=(10, 11), scope=CREWAI, name=f"Flow_{id_}.choose"),
        span("k", kind("TOOL", {"tool.name": "readHTMLPage"}), at=(12, 13), scope=CREWAI),
    )
    names = {id_: row["name"] for id_, row in call_rows.items() if row["kind"] != "llm"}
    assert names == {
        **{"c": "Crew", "a": "guide", "t": "delegate_work_to_coworker"},
        **{"f": "Flow.choose", "k": "read_html_page"},
    }
    assert (call_rows["a"]["input"], call_rows["a"]["output"]) == ("Where to?\n\nSunny.", "Home.")
    assert {call_rows[id_]["agent"] for id_ in "amt"} == {"guide"}
    tool = call_rows["t"]
    assert (tool["status"], tool["error_type"]) == ("error", "tool_error")
    assert (tool["requested_by"], tool["tool_call_id"]) == ("m", "c1")


def test_llama_index() -> None:
    event = "AgentSetup(input=['current_agent_name'], current_agent_name='desk', tools=[])"
    step = {"input.value": json.dumps({"ctx": "<Context>", "ev": event})}
    context = "<workflows.context.context.Context object at 0x7fece480ac50>"
    forward = {
        "tool.name": "handoff",
        "input.value": json.dumps({"kwargs": {"to": "forecaster", "ctx": context}}),
        "output.value": '{"blocks": [{"text": "It is yours."}], "is_error": true}',
    }
    found_there = {"input.value": "Bath", "retrieval.documents.0.document.content": "A town."}
    metadata = {"llm.model_name": "m", "llm.invocation_parameters": '{"context_window": 3900}'}
    call_rows = rows(
        span("s", kind("CHAIN", step), at=(0, 5), scope=LLAMA_INDEX, name="W.run_agent_step"),
        span("p", kind("LLM", metadata), parent="s", at=(1, 2), scope=LLAMA_INDEX, name="L._ready"),
        span("l", kind("LLM", metadata), parent="s", at=(2, 4), scope=LLAMA_INDEX, name="L.achat"),
        span("m", tool_requests(("c1", "handoff", {"to": "forecaster"})), parent="l", at=(3, 4)),
        span("w", kind("CHAIN"), at=(5, 8), scope=LLAMA_INDEX, name="W.call_tool"),
        span("t", kind("TOOL", forward), parent="w", at=(6, 7), scope=LLAMA_INDEX),
        span("r", kind("RETRIEVER", found_there), at=(9, 10), scope=LLAMA_INDEX, name="V.retrieve"),
    )
    assert list(call_rows) == ["s", "l", "w", "t", "r"]
    model, tool, retrieval = call_rows["l"], call_rows["t"], call_rows["r"]
    assert (model["agent"], model["params"], model["source_spans"]) == ("desk", None, ["l", "m"])
    assert (tool["agent"], tool["requested_by"], tool["status"]) == ("desk", "l", "error")
    assert (tool["arguments"], tool["result"]) == ('{"to": "forecaster"}', "It is yours.")
    assert (retrieval["name"], retrieval["output"]) == ("V", '["A town."]')


def test_litellm() -> None:
    at = "llm.output_messages.0.message."
    attributes = {
        "llm.invocation_parameters": '{"temperature": 0.5, "api_base": "http://x", "n": 1}',
        at + "role": "assistant",
        at + "contents.0.message_content.type": "reasoning",
        at + "contents.0.message_content.text": "Two cities.",
        at + "contents.1.message_content.type": "text",
        at + "contents.1.message_content.text": "Sunny.",
    }
    (row,) = rows(span("completion", kind("LLM", attributes), scope=LITELLM)).values()
    assert row["params"] == '{"n": 1, "temperature": 0.5}'
    (message,) = json.loads(row["output"])
    assert message["parts"] == [
        {"type": "reasoning", "content": "Two cities."},
        {"type": "text", "content": "Sunny."},
    ]


DSPY = "openinference.instrumentation.dspy"
ADK = "gcp.vertex.agent"
TRACELOOP = "opentelemetry.instrumentation.openai_agents"


@pytest.mark.parametrize("method", ["__call__", "acall"])
@pytest.mark.parametrize(
    "envelope", ['{"kwargs": {"city": "Bath"}}', '{"args": [], "kwargs": {"city": "Bath"}}']
)
def test_dspy(method: str, envelope: str) -> None:
    tool = {"input.value": envelope, "output.value": '{"isError": true, "message": "no"}'}
    module = {"input.value": '{"kwargs": {"question": "?"}}', "output.value": '"so"'}
    call_rows = rows(
        span("n", kind("CHAIN", module), scope=DSPY, name="Predict.forward"),
        span("t", kind("TOOL", tool), scope=DSPY, name=f"weather.{method}"),
        span("u", kind("TOOL", {"output.value": "12"}), scope=DSPY, name="count.__call__"),
    )
    assert (call_rows["n"]["name"], call_rows["n"]["input"]) == ("Predict", '{"question": "?"}')
    assert call_rows["n"]["output"] == "so"
    read = [call_rows["t"][name] for name in ("name", "arguments", "status")]
    assert read == ["weather", '{"city": "Bath"}', "error"]
    assert call_rows["u"]["result"] == "12"


def test_a_dspy_module_that_calls_tools_is_an_agent() -> None:
    answer = {"answer": "so", "history": {"messages": []}, "termination_reason": "submit"}
    module = {
        "input.value": json.dumps({"input_args": {"question": "?"}}),
        "output.value": json.dumps(answer),
    }
    made = span("n", kind("CHAIN", module), scope=DSPY, name="ReActV2.aforward")
    (row,) = rows(made).values()
    read = [row[name] for name in ("kind", "agent", "input", "output")]
    assert read == ["agent", "ReActV2", "?", "so"]


@pytest.mark.parametrize("swapped", [False, True])
def test_tools_whose_ids_no_request_has_are_matched_by_name_and_arguments(swapped: bool) -> None:
    requests = [("c1", "book", {"city": "Bath"}), ("c2", "book", {"city": "York"})]

    def tool(id: str, city: str) -> dict[str, str]:
        return {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "book",
            "gen_ai.tool.call.id": id,
            "gen_ai.tool.call.arguments": json.dumps({"city": city}),
        }

    # the first has the wrong arguments for c1, which the second claims by its id
    first, second = tool("adk-7", "York"), tool("c1", "Bath")
    times = [(6, 7), (4, 5)] if swapped else [(4, 5), (6, 7)]
    call_rows = rows(
        span("m", tool_requests(*requests), at=(0, 3), scope=ADK),
        span("x", first, at=times[0], scope=ADK),
        span("y", second, at=times[1], scope=ADK),
        span("z", tool("adk-8", "Rome"), at=(8, 9), scope=ADK),
    )
    assert {id: call_rows[id]["tool_call_id"] for id in "xyz"} == {
        **{"x": "c2", "y": "c1", "z": "adk-8"}
    }
    assert call_rows["x"]["requested_by"] == "m"


def test_google_adks_own_attributes_and_failures() -> None:
    tool = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "book",
        "gcp.vertex.agent.tool_call_args": '{"city": "Bath"}',
        "gcp.vertex.agent.tool_response": '{"status": "error", "error_message": "full"}',
    }
    read = rows(span("t", tool, scope=ADK))["t"]
    assert (read["arguments"], read["status"]) == ('{"city": "Bath"}', "error")
    fine = {**tool, "gcp.vertex.agent.tool_response": '{"status": "success"}'}
    assert rows(span("t", fine, scope=ADK))["t"]["status"] == "ok"


@pytest.mark.parametrize(
    "scope, status",
    [
        ("openinference.instrumentation.google_adk", "error"),
        ("strands.telemetry.tracer", "error"),
        ("openinference.instrumentation.langchain", "ok"),
        ("opentelemetry.instrumentation.langchain", "ok"),
    ],
)
def test_the_status_in_a_result_is_the_tools_only_where_its_framework_means_that(
    scope: str, status: str
) -> None:
    value = '{"build": 17, "status": "error"}'
    tool = {
        **{"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.result": value},
        **{"openinference.span.kind": "TOOL", "output.value": value},
    }
    assert rows(span("t", tool, scope=scope))["t"]["status"] == status


def test_a_hand_off_of_openai_agents_under_traceloop_answers_its_request() -> None:
    handoff = {
        "traceloop.span.kind": "handoff",
        "gen_ai.operation.name": "handoff",
        "gen_ai.agent.name": "triage",
        "gen_ai.handoff.to_agent": "booker",
    }
    call_rows = rows(
        span("m", tool_requests(("c1", "transfer_to_booker", {})), at=(0, 3), scope=TRACELOOP),
        span("h", handoff, at=(4, 5), scope=TRACELOOP, name="triage → booker.handoff"),
    )
    columns = ("kind", "name", "agent", "tool_call_id", "requested_by", "output")
    assert [call_rows["h"][name] for name in columns] == [
        *("tool", "transfer_to_booker", "triage", "c1", "m", "booker")
    ]


def test_ids_of_items_are_not_those_of_tool_calls() -> None:
    """The inner span of the Responses API has ids of items, the outer one those of tool calls."""
    inner = {
        "gen_ai.request.model": "m",
        "gen_ai.response.id": "resp_1",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.tool_calls.0.id": "fc_1",
        "gen_ai.completion.0.tool_calls.0.name": "book",
        "gen_ai.completion.0.tool_calls.0.arguments": "{}",
    }
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "book"}
    alone = rows(
        span("i", inner, at=(1, 2), scope=OPENAI),
        span("t", tool, at=(4, 5), scope=TRACELOOP),
    )
    assert (alone["t"]["requested_by"], alone["t"]["tool_call_id"]) == ("i", "")
    call_rows = rows(
        span("m", tool_requests(("c1", "book", {})), at=(0, 3), scope=TRACELOOP),
        span("i", inner, parent="m", at=(1, 2), scope=OPENAI),
        span("t", tool, at=(4, 5), scope=TRACELOOP),
    )
    assert (call_rows["t"]["requested_by"], call_rows["t"]["tool_call_id"]) == ("m", "c1")


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"gen_ai.response.id": "r"}, "llm"),  # without content
        ({"gen_ai.prompt.0.content": "hi"}, "llm"),
        ({"gen_ai.response.id": "r", "llm.request.type": "rerank"}, None),
        ({"gen_ai.response.id": "r", "gen_ai.operation.name": "invoke_agent"}, "agent"),
        ({"gen_ai.response.id": "r", "llm.request.type": "embedding"}, "embedding"),
        ({"gen_ai.usage.input_tokens": "3"}, None),
    ],
)
def test_only_a_response_is_a_call_without_a_type_of_request(
    attributes: dict[str, str], expected: str | None
) -> None:
    call_rows = rows(span("r", {"gen_ai.request.model": "m", **attributes}, scope=OPENAI))
    assert [row["kind"] for row in call_rows.values()] == [expected] * (expected is not None)


@pytest.mark.parametrize(
    ("attributes", "delivered"),
    [
        ({}, False),
        ({"gen_ai.response.finish_reasons": '["stop"]'}, True),
        ({"gen_ai.usage.output_tokens": "3"}, True),
        ({"gen_ai.is_streaming": "false"}, True),
    ],
)
@pytest.mark.parametrize("name", ["gen_ai.is_streaming", "llm.is_streaming"])
def test_a_stream_without_finish_reason_and_usage_was_left(
    name: str, attributes: dict[str, str], delivered: bool
) -> None:
    if "gen_ai.is_streaming" in attributes:
        name = "gen_ai.is_streaming"
    output = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "One"}]}])
    stream = {"gen_ai.operation.name": "chat", "gen_ai.output.messages": output, name: "true"}
    assert rows(span("s", stream | attributes, scope=OPENAI))["s"]["delivered"] is delivered


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.operation.name": "embeddings", "gen_ai.usage.input_tokens": "3"},
        {"gen_ai.operation.name": "embeddings", "gen_ai.usage.prompt_tokens": "3"},
        {"llm.request.type": "embedding", "gen_ai.usage.prompt_tokens": "3"},
        kind("EMBEDDING", {"llm.token_count.prompt": "3"}),
        {"ai.operationId": "ai.embed.doEmbed", "ai.usage.tokens": "3"},
        {
            "langfuse.observation.type": "embedding",
            "langfuse.observation.usage_details": '{"input": 3}',
        },
    ],
)
def test_the_usage_of_an_embedding_is_kept(attributes: dict[str, str]) -> None:
    row = rows(span("e", attributes))["e"]
    assert (row["kind"], row["input_tokens"], row["output_tokens"]) == ("embedding", 3, None)


def test_agno_writes_the_agents_id_as_a_node() -> None:
    agent = {"agent.name": "guide", "graph.node.id": "b334a2baa80bda43", "input.value": "How?"}
    made = span("a", kind("AGENT", agent), scope="openinference.instrumentation.agno")
    (row,) = rows(made).values()
    assert (row["kind"], row["agent"], row["node"]) == ("agent", "guide", None)
