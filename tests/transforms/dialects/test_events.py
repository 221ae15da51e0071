"""Messages in events of spans, as several writers put them there."""

import json
from typing import Any

import pytest
from tests.transforms.made import span, spans, texts

from ltrain_transforms.calls import calls

STRANDS = "strands.telemetry.tracer"
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


def row(attributes: dict[str, str], *events: tuple[str, dict[str, str]]) -> dict[str, Any]:
    rows, drops = calls(spans(span("a", attributes, scope=STRANDS, events=json.dumps(events))))
    assert drops.is_empty()
    [row] = rows.to_dicts()
    return row


def details(**messages: Any) -> tuple[str, dict[str, str]]:
    values = {f"gen_ai.{name}": json.dumps(value) for name, value in messages.items()}
    return "gen_ai.client.inference.operation.details", values


def test_a_conversation_of_strands_with_tools() -> None:
    use = {"toolUse": {"toolUseId": "c1", "name": "weather", "input": {"city": "Bath"}}}
    answered = {"toolResult": {"toolUseId": "c1", "status": "success", "content": [{"text": "no"}]}}
    read = row(
        CHAT,
        ("gen_ai.system.message", {"content": json.dumps([{"text": "Be brief."}])}),
        ("gen_ai.user.message", {"content": json.dumps([{"text": "weather?"}])}),
        ("gen_ai.assistant.message", {"content": json.dumps([{"text": "Let me see."}, use])}),
        ("gen_ai.tool.message", {"content": json.dumps([answered])}),
        ("gen_ai.choice", {"message": json.dumps([use]), "finish_reason": "tool_use"}),
    )
    assert texts(read["input"]) == [
        ("system", "Be brief."),
        ("user", "weather?"),
        ("assistant", "Let me see."),
        ("assistant", "weather"),
        ("tool", "no"),
    ]
    [answer] = json.loads(read["output"])
    request = {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Bath"}}
    assert (answer["parts"], read["finish_reason"]) == ([request], "tool_use")


@pytest.mark.parametrize(
    "content", ['{"content": "Azure"}', '{"role": "user", "content": "Azure"}']
)
def test_the_content_of_azures_events_is_one_attribute(content: str) -> None:
    choice = {"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
    read = row(
        CHAT,
        ("gen_ai.user.message", {"gen_ai.system": "az", "gen_ai.event.content": content}),
        ("gen_ai.choice", {"gen_ai.event.content": json.dumps(choice)}),
    )
    assert (texts(read["input"]), texts(read["output"])) == (
        [("user", "Azure")],
        [("assistant", "yes")],
    )
    assert read["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "text", ["42", "[1, 2]", '{"a": 1}', "null", "plain", '[{"name": "Bob"}]', '[{"text": "a"}, 1]']
)
def test_a_users_text_that_is_json_stays_text(text: str) -> None:
    read = row(CHAT, ("gen_ai.user.message", {"content": text}))
    assert texts(read["input"]) == [("user", text)]


def test_an_answer_that_is_a_json_object_stays_text() -> None:
    read = row(CHAT, ("gen_ai.choice", {"message": '{"city": "Bath"}'}))
    assert texts(read["output"]) == [("assistant", '{"city": "Bath"}')]


def test_messages_of_older_conventions_are_in_two_events() -> None:
    prompt = json.dumps([{"role": "user", "content": "hi"}])
    read = row(
        CHAT,
        ("gen_ai.content.prompt", {"gen_ai.prompt": prompt}),
        ("gen_ai.content.completion", {"gen_ai.completion": "hello"}),
    )
    assert (texts(read["input"]), texts(read["output"])) == (
        [("user", "hi")],
        [("assistant", "hello")],
    )


def test_attributes_count_before_events() -> None:
    messages = [{"role": "user", "parts": [{"type": "text", "content": "attribute"}]}]
    own = {**CHAT, "gen_ai.input.messages": json.dumps(messages)}
    read = row(own, ("gen_ai.user.message", {"content": "event"}))
    assert texts(read["input"]) == [("user", "attribute")]


@pytest.mark.parametrize("status", ["ok", "error"])
def test_a_tool_has_its_arguments_and_result_in_events(status: str) -> None:
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather"}
    tool |= {"gen_ai.tool.status": "error"} if status == "error" else {}
    events = (
        ("gen_ai.tool.message", {"role": "tool", "content": '{"city": "Bath"}', "id": "c1"}),
        ("gen_ai.choice", {"message": json.dumps([{"text": "no"}]), "id": "c1"}),
    )
    newer = (
        details(**{"input.messages": [tool_part("tool_call", arguments={"city": "Bath"})]}),
        details(**{"output.messages": [tool_part("tool_call_response", response="no")]}),
    )
    for written in (events, newer):
        read = row(tool, *written)
        assert (read["arguments"], read["result"]) == ('{"city": "Bath"}', "no")
        assert read["status"] == status


def tool_part(kind: str, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "parts": [{"type": kind, "id": "c1", "name": "weather", **fields}]}


def test_an_agent_has_its_input_and_output_in_events() -> None:
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "guide"}
    read = row(
        agent,
        ("gen_ai.user.message", {"content": json.dumps([{"text": "weather?"}])}),
        ("gen_ai.choice", {"message": "sunny", "finish_reason": "end_turn"}),
    )
    assert (read["input"], read["output"]) == ("weather?", "sunny")


def test_strands_results_are_texts_in_blocks_and_its_answers_are_lines() -> None:
    result = json.dumps([{"text": "It is sunny"}, {"text": " in Bath."}])
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.result": result}
    assert row(tool)["result"] == "It is sunny in Bath."
    other = json.dumps([{"json": {"sky": "blue"}}])
    assert row({**tool, "gen_ai.tool.call.result": other})["result"] == other
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "guide"}
    answer = {"role": "assistant", "parts": [{"type": "text", "content": "Sunny.\n"}]}
    assert row(agent, details(**{"output.messages": [answer]}))["output"] == "Sunny."
