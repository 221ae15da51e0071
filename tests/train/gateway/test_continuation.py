"""A call that continues an earlier one begins with the ids that the policy read and sampled."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from ltrain_instrument.allow import Allow
from ltrain_train.gateway.continuation.known_turns import KnownTurns, Turn, make_turn, read_history

START, END, BREAK, THINK = 900, 901, 902, 903
ROLES = {"system": 910, "user": 911, "assistant": 912, "tool": 913}
ANSWER = f"h{THINK} h7 w5 h{END}"
"""A question whose answer is a thought, which its text lacks, the text `w5`, and the end."""
Body = dict[str, Any]


def ids_of(text: str) -> list[int]:
    """Return the ids of a text: `wN` is N, any other word a number of its own."""
    return [int(w[1:]) if w[:1] == "w" else 2000 + sum(w.encode()) % 9999 for w in text.split()]


def template(body: Body) -> list[int]:
    """Render a chat: of an answer the text and the tool calls, without the thought."""
    ids = []
    for message in body["messages"]:
        ids += [START, ROLES[message["role"]], *ids_of(message["content"] or "")]
        for call in message.get("tool_calls") or ():
            ids += [920, *ids_of(json.dumps(json.loads(call["function"]["arguments"]))), 921]
        ids += [END, BREAK]
    return [*ids, START, ROLES["assistant"]]


@pytest.fixture
def stage(prepared_stage: Any, vllm: Any) -> Iterator[Any]:
    vllm.template = template
    prepared_stage.continues = True
    with prepared_stage.running() as stage:
        learn_limit = stage.publication.upstream.models()
        asyncio.run_coroutine_threadsafe(learn_limit, stage.loop).result()
        yield stage


def question(text: str = ANSWER) -> Body:
    return {"role": "user", "content": text}


def chat(stage: Any, *messages: Body, **fields: Any) -> Body:
    """Send a chat and return the attributes of its span."""
    count = len(stage.spans())
    body = {"model": "policy", "messages": list(messages), **fields}
    key = stage.key(allow=(Allow.TEMPLATE, Allow.MULTIMODAL))
    answer = stage.post("/v1/chat/completions", body, key=key)
    assert answer.status_code == 200, answer.text
    attributes: Body = stage.wait_spans(count + 1)[-1]["attributes"]
    return attributes


def prompt(attributes: Body) -> list[int]:
    ids: list[int] = json.loads(attributes["ltrain.prompt_token_ids"])
    return ids


def whole(attributes: Body) -> list[int]:
    return prompt(attributes) + list(json.loads(attributes["ltrain.response_token_ids"]))


@pytest.mark.parametrize("stream", [False, True])
def test_each_prompt_begins_with_the_ids_of_the_turn_before(stage: Any, stream: bool) -> None:
    history = [question()]
    first = chat(stage, *history, stream=stream)
    assert first["ltrain.continued"] == 0
    for text in (f"w8 {ANSWER}", f"w9 {ANSWER}"):
        history += [repeat_answer(first), question(text)]
        second = chat(stage, *history, stream=stream)
        new = [BREAK, START, ROLES["user"], *ids_of(text), END, BREAK, START, ROLES["assistant"]]
        assert prompt(second) == whole(first) + new
        assert second["ltrain.continued"] == len(whole(first))
        assert "ltrain.not_continued" not in second
        first = second


def repeat_answer(attributes: Body) -> Body:
    """Return an answer as a client repeats it: without the thought, and with white space."""
    (message,) = json.loads(attributes["gen_ai.output.messages"])
    texts = [part["content"] for part in message["parts"] if part["type"] == "text"]
    return {"role": "assistant", "content": f" {texts[0]}\n"}


def test_the_client_may_write_the_arguments_of_tools_anew(stage: Any) -> None:
    history = [question(f"call {ANSWER}")]
    first = chat(stage, *history)
    (message,) = json.loads(first["gen_ai.output.messages"])
    calls = [part for part in message["parts"] if part["type"] == "tool_call"]
    written = [
        {"id": each["id"], "type": "function", "function": {"name": each["name"], "arguments": new}}
        for each, new in zip(calls, ('{"city":"Rome"}', '{"city" :"Oslo"}'), strict=True)
    ]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": ANSWER} for each in calls]
    second = chat(stage, *history, {**repeat_answer(first), "tool_calls": written}, *results)
    turn = [START, ROLES["tool"], *ids_of(ANSWER), END, BREAK]
    assert prompt(second) == [*whole(first), BREAK, *turn, *turn, START, ROLES["assistant"]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("api", "field"), [("messages", "messages"), ("responses", "input")])
def test_the_other_apis_continue_too(stage: Any, api: str, field: str, stream: bool) -> None:
    def ask(history: list[Body], count: int) -> Body:
        limit = {"max_tokens": 50} if api == "messages" else {}
        body = {"model": "policy", field: history, "stream": stream, **limit}
        answer = stage.post(f"/v1/{api}", body, key=stage.key(allow=(Allow.TEMPLATE,)))
        assert answer.status_code == 200, answer.text
        attributes: Body = stage.wait_spans(count)[-1]["attributes"]
        return attributes

    first = ask([question()], 1)
    second = ask([question(), repeat_answer(first), NEXT], 2)
    new = [BREAK, START, ROLES["user"], *ids_of(NEXT["content"]), END, BREAK, START]
    assert prompt(second) == [*whole(first), *new, ROLES["assistant"]]


def test_a_call_that_is_sent_again_continues_the_same_turn(stage: Any) -> None:
    first = chat(stage, question())
    again = (question(), repeat_answer(first), question(f"w8 {ANSWER}"))
    assert prompt(chat(stage, *again)) == prompt(chat(stage, *again))


def test_production_and_completions_are_not_continued(stage: Any) -> None:
    assert stage.ask(ANSWER, identity=None).status_code == 200
    assert stage.complete(ANSWER).status_code == 200
    assert all("ltrain.continued" not in each["attributes"] for each in stage.spans())


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
NEXT = question(f"w8 {ANSWER}")
REASONS: list[tuple[str, str, list[Body], Body]] = [
    ("fields", ANSWER, [NEXT], {"tools": TOOLS}),
    ("fields", ANSWER, [NEXT], {"truncate_prompt_tokens": 9}),
    ("cut", f"cut {ANSWER}", [NEXT], {}),
    ("cut", f"matched {ANSWER}", [NEXT], {}),
    ("messages", ANSWER, [], {}),
    ("messages", ANSWER, [{"role": "assistant", "content": "w1"}, NEXT], {}),
    ("messages", ANSWER, [question([{"type": "text", "text": ANSWER}, IMAGE])], {}),  # type: ignore[arg-type]
    ("too_long", ANSWER, [NEXT], {"max_tokens": 4090}),
    ("template", "h7 w5 h6", [NEXT], {}),
]


@pytest.mark.parametrize(("reason", "begun", "new", "fields"), REASONS)
def test_a_call_that_cannot_be_continued_gets_the_plain_prompt_and_the_reason(
    stage: Any, vllm: Any, reason: str, begun: str, new: list[Body], fields: Body
) -> None:
    first = chat(stage, question(begun))
    vllm.template = lambda body: [1, 2, 3] if reason == "messages" else template(body)
    second = chat(stage, question(begun), repeat_answer(first), *new, **fields)
    assert (second["ltrain.continued"], second["ltrain.not_continued"]) == (0, reason)
    assert "kv_transfer_params" not in vllm.requests[-1]


def test_a_changed_history_is_unknown(stage: Any) -> None:
    first = chat(stage, question())
    changed = chat(stage, question(f"w1 {ANSWER}"), repeat_answer(first), NEXT)
    assert (changed["ltrain.continued"], changed["ltrain.not_continued"]) == (0, "unknown")


def test_a_server_that_ignores_the_ids_is_reported(stage: Any, vllm: Any) -> None:
    first, vllm.takes_ids = chat(stage, question()), False
    second = chat(stage, question(), repeat_answer(first), NEXT)
    assert prompt(second) == template({"messages": [question(), repeat_answer(first), NEXT]})
    assert (second["ltrain.continued"], second["ltrain.not_continued"]) == (0, "server")


def hoisted(body: Body) -> list[int]:
    """Render all system prompts at the beginning."""
    messages = sorted(body["messages"], key=lambda each: each["role"] != "system")
    return template({"messages": messages})


def dated(body: Body) -> list[int]:
    """Render the last message otherwise in a long chat."""
    ids = template(body)
    return [*ids, 77] if len(body["messages"]) > 4 else ids


def other_end(body: Body) -> list[int]:
    """End answers by another id than the policy does."""
    ids = []
    for message in body["messages"]:
        end = 904 if message["role"] == "assistant" else END
        ids += [*template({"messages": [message]})[:-4], end, BREAK]
    return [*ids, START, ROLES["assistant"]]


def without_texts(body: Body) -> list[int]:
    """Render the number of messages only."""
    return [1, END] * len(body["messages"])


@pytest.mark.parametrize("rendered", [hoisted, dated, other_end, without_texts])
def test_a_template_that_renders_the_new_messages_elsewhere_gets_the_plain_prompt(
    stage: Any, vllm: Any, rendered: Any
) -> None:
    vllm.template = rendered
    first = chat(stage, question("w1"), {"role": "assistant", "content": "w2"}, question())
    new = [{"role": "system", "content": "w3"}, NEXT]
    begun = (question("w1"), {"role": "assistant", "content": "w2"}, question())
    second = chat(stage, *begun, repeat_answer(first), *new)
    assert prompt(second) == rendered({"messages": [*begun, repeat_answer(first), *new]})
    assert (second["ltrain.continued"], second["ltrain.not_continued"]) == (0, "template")


def test_a_server_without_the_render_route_gets_the_plain_prompt(stage: Any, vllm: Any) -> None:
    first = chat(stage, question())
    vllm.render = lambda body: (404, {})
    second = chat(stage, question(), repeat_answer(first), NEXT)
    assert (second["ltrain.continued"], second["ltrain.not_continued"]) == (0, "template")


def test_turns_are_bounded_in_bytes_and_the_oldest_unused_one_is_forgotten() -> None:
    turns = KnownTurns(max_bytes=2 * 1000)
    histories = [
        read_history(b"me", {"messages": [question(f"w{n}"), {"role": "assistant"}]})
        for n in range(3)
    ]
    turn: Turn = make_turn(range(100), [END], histories[0], cut=False)
    for history in histories[:2]:
        turns.add(history.keys[-1], turn)
    assert turns.find(histories[0]) == (turn, 1)
    turns.add(histories[2].keys[-1], turn)
    assert [turns.find(each) is None for each in histories] == [False, True, False]
