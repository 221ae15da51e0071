"""What OpenInference writes of frameworks, as the runs of tests/frameworks show it."""

import json
from collections.abc import Mapping
from typing import Any

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
