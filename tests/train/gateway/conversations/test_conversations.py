"""Calls without a trace form conversations, through a gateway and its spool."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp, open_empty_store
from tests.train.gateway.stage import IDENTITY

from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read_spans

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
Message = dict[str, Any]


def chat(
    stage: Any, messages: list[Message], headers: dict[str, str] | None = None, **body: Any
) -> Message:
    """Send a chat of production, and return the answer's message."""
    sent = {"model": "policy", "messages": messages, **body}
    response = stage.post("/v1/chat/completions", sent, identity=None, headers=headers)
    assert response.status_code == 200, response.text
    message: Message = response.json()["choices"][0]["message"]
    return {name: message[name] for name in ("role", "content", "tool_calls") if message.get(name)}


def converse(stage: Any, opening: str, turns: int, **more: Any) -> list[Message]:
    messages = [{"role": "user", "content": opening}]
    for turn in range(turns):
        messages = [*messages, chat(stage, messages, **more), user(f"more w{turn}")]
    return messages


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def conversations(stage: Any) -> list[tuple[str, str]]:
    """Return the trace and the session of each span, in the order of their ends."""
    spans = stage.spans()
    return [(each["trace"], each["attributes"]["gen_ai.conversation.id"]) for each in spans]


def test_two_interleaved_conversations_are_two_traces_and_sessions(stage: Any) -> None:
    histories = [[user("go w1")], [user("go w2")]]
    for turn in range(5):
        for number, history in enumerate(histories):
            answer = chat(stage, history)
            histories[number] = [*history, answer, user(f"then w{turn} w{number}")]
    found = conversations(stage)
    assert len(found) == 10 and len(set(found)) == 2
    assert found[0::2] == [found[0]] * 5 and found[1::2] == [found[1]] * 5
    assert all(session.startswith("conv-") for _, session in found)
    assert all(not each["parent"] for each in stage.spans())


def test_equal_conversations_at_the_same_time_stay_two(stage: Any) -> None:
    answers = [chat(stage, [user("hi w1")]) for _ in range(2)]
    for number, answer in enumerate(answers):
        chat(stage, [user("hi w1"), answer, user(f"w{number}")])
    first, second, third, fourth = conversations(stage)
    assert first != second and (third, fourth) == (first, second)


@pytest.mark.parametrize("keys", [("a", "b"), ("a", None)])
def test_conversations_of_two_keys_are_never_joined(
    stage: Any, keys: tuple[str | None, str | None]
) -> None:
    for key in keys:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        headers["x-session-id"] = "default"
        converse(stage, "hi w1", 2, headers=headers)
    found = conversations(stage)
    assert found[:2] == [found[0]] * 2 and found[2:] == [found[2]] * 2
    assert found[0][0] != found[2][0] and found[0][1] == "default"
    assert found[2][1].startswith("default@")


def test_a_restarted_gateway_continues_its_conversations(
    prepared_stage: Any, tmp_path: Any
) -> None:
    with prepared_stage.running():
        history = converse(prepared_stage, "go w1", 2)
        first = set(conversations(prepared_stage))
    again = prepared_stage.restarted()
    file = again.home / "gateway" / "conversations.jsonl"
    file.write_bytes(b"{torn\n\xff\n" + file.read_bytes() + b'\n{"kind":"link"')
    with again.running():
        chat(again, history)
    assert set(conversations(again)) == first and len(first) == 1
    assert "go" not in file.read_text(errors="replace")


def test_a_call_with_a_trace_keeps_its_own(stage: Any) -> None:
    trace = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-00"}
    chat(stage, [user("w1")], trace)
    (span,) = stage.spans()
    assert "gen_ai.conversation.id" not in span["attributes"]
    assert span["trace"] == "a" * 32


def test_the_calls_of_an_attempt_have_its_tools_which_its_close_counts(stage: Any) -> None:
    messages = [user("call w1")]
    fixed = {"model": "policy", "tools": TOOLS}
    answer = stage.post("/v1/chat/completions", {**fixed, "messages": messages}).json()
    answer = answer["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
        for call in answer["tool_calls"]
    ]
    again = [*messages, {**answer, "role": "assistant"}, *results]
    stage.post("/v1/chat/completions", {**fixed, "messages": again})
    counts = stage.client.close_attempt(IDENTITY, stage.key())
    first, *tools, last, closing = stage.spans()
    assert [tool["name"] for tool in tools] == ["execute_tool weather"] * 2
    for span in (first, *tools, last):
        assert span["attributes"]["ltrain.rollout.id"] == IDENTITY.rollout
        assert span["trace"] == first["trace"]
    assert closing["attributes"]["ltrain.rollout.spans"] == 4 and counts.llm_calls == 2
    assert not (stage.home / "gateway" / "conversations.jsonl").exists()


def test_a_tool_result_becomes_a_span_with_its_call(stage: Any) -> None:
    opening = [user("call w1")]
    answer = chat(stage, opening, tools=TOOLS)
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"sunny {number}"}
        for number, call in enumerate(answer["tool_calls"])
    ]
    for _ in range(2):  # a request that is sent again has no new results
        chat(stage, [*opening, answer, *results], tools=TOOLS)
    tools = [span for span in stage.spans() if span["name"].startswith("execute_tool")]
    assert [tool["attributes"] for tool in tools] == [
        {
            "ltrain.mode": "prod",
            "gen_ai.conversation.id": conversations(stage)[0][1],
            "gen_ai.agent.name": "main",
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "weather",
            "gen_ai.tool.call.id": f"call-{city.lower()}",
            "gen_ai.tool.call.arguments": json.dumps({"city": city}),
            "gen_ai.tool.call.result": f"sunny {number}",
            "ltrain.untimed": True,
        }
        for number, city in enumerate(("Rome", "Oslo"))
    ]
    assert len(set(conversations(stage))) == 1


def test_an_error_that_the_client_states_is_one_of_the_tool(stage: Any) -> None:
    tools = [{"name": "weather", "input_schema": {"type": "object"}}]
    fixed = {"model": "policy", "max_tokens": 99, "tools": tools}
    messages = [user("call w1")]
    answer = stage.post("/v1/messages", {**fixed, "messages": messages}, identity=None).json()
    uses = [block for block in answer["content"] if block["type"] == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": use["id"], "content": "x", "is_error": number == 0}
        for number, use in enumerate(uses)
    ]
    turn = [
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": results},
    ]
    stage.post("/v1/messages", {**fixed, "messages": [*messages, *turn]}, identity=None)
    found = [each for each in stage.spans() if each["name"].startswith("execute_tool")]
    assert [each["attributes"].get("error.type") for each in found] == ["tool_error", None]
    assert len(set(conversations(stage))) == 1


def test_a_build_finds_requesters_and_no_durations(stage: Any, tmp_path: Path) -> None:
    opening = [user("call w1")]
    answer = chat(stage, opening, tools=TOOLS)
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
        for call in answer["tool_calls"]
    ]
    chat(stage, [*opening, answer, *results], tools=TOOLS)
    with open_empty_store(tmp_path / "spans") as store:
        for request in stage.otlp_requests():
            insert_otlp(store, request)
        spans, dropped = read_spans(store, Source(execution="trace", mode="prod"), Selection())
        tools = store.query("SELECT tool, duration FROM otel.tool_calls").to_dicts()
        models = store.query("SELECT model FROM otel.llm_calls").to_dicts()
    found = calls(spans)[0].sort("seq").to_dicts()
    first, *tool_calls, last = found
    assert [call["kind"] for call in found] == ["llm", "tool", "tool", "llm"]
    assert {call["requested_by"] for call in tool_calls} == {first["call_id"]}
    assert [call["untimed"] for call in found] == [False, True, True, False]
    assert {call["agent"] for call in found} == {"main"} and last["parent_id"] is None
    assert len({call["execution_id"] for call in found}) == 1 and dropped.is_empty()
    assert tools == [{"tool": "weather", "duration": None}] * 2
    assert models == [{"model": "policy"}] * 2
