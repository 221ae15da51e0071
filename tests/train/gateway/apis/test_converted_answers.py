"""A response of another API is the same, however the server splits the chat into chunks."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ltrain_instrument.tokens import build_request
from ltrain_train.gateway.apis.converted_answer import ConvertedAnswer
from ltrain_train.gateway.apis.messages_answer import MessagesAnswer
from ltrain_train.gateway.apis.omissions import Omissions
from ltrain_train.gateway.apis.responses_answer import ResponsesAnswer
from ltrain_train.gateway.apis.responses_tools import ResponsesTools

REQUEST = build_request("chat", {"model": "policy", "messages": []})
TOOLS: list[dict[str, Any]] = [
    {"type": "custom", "name": "f0"},
    {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
    {"type": "local_shell"},
]
NAMES = ("f", "f0", "n__f", "local_shell")
HEAD = {"id": "chatcmpl-1", "created": 7}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}

texts = st.text("ab \n", min_size=1, max_size=6)
arguments = st.sampled_from(('{"city": "Rome"}', "{}", "no JSON", "[1]", ""))
calls = st.tuples(st.sampled_from(NAMES), arguments | st.just('{"command": ["ls"], "input": "x"}'))
messages = st.fixed_dictionaries(
    {}, optional={"reasoning": texts, "content": texts, "calls": st.lists(calls, max_size=3)}
)


def answers() -> list[ConvertedAnswer]:
    return [
        MessagesAnswer(REQUEST),
        ResponsesAnswer(REQUEST, {}, ResponsesTools(TOOLS, Omissions("OpenAI"))),
    ]


def complete(message: dict[str, Any], reason: str) -> bytes:
    calls = [
        {"id": f"c{number}", "function": {"name": name, "arguments": text}}
        for number, (name, text) in enumerate(message.get("calls", ()))
    ]
    fields = {name: message.get(name) for name in ("reasoning", "content")}
    choice = {"message": {**fields, "tool_calls": calls}, "finish_reason": reason}
    return json.dumps({**HEAD, "choices": [choice], "usage": USAGE}).encode()


def chunks(message: dict[str, Any], reason: str, size: int, alternate: bool) -> list[bytes]:
    deltas: list[Any] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning", "content"):
        deltas += [{name: piece} for piece in pieces(message.get(name, ""), size)]
    calls = [
        [
            {"index": number, "id": f"c{number}", "function": {"name": name, "arguments": ""}},
            *({"index": number, "function": {"arguments": each}} for each in pieces(text, size)),
        ]
        for number, (name, text) in enumerate(message.get("calls", ()))
    ]
    ordered = sorted(
        (place, call) for call in range(len(calls)) for place in range(len(calls[call]))
    )
    if not alternate:
        ordered.sort(key=lambda each: each[1])
    deltas += [{"tool_calls": [calls[call][place]]} for place, call in ordered]
    choices = [[{"delta": delta, "finish_reason": None}] for delta in deltas]
    choices += [[{"delta": {}, "finish_reason": reason}]]
    written = [{**HEAD, "choices": each} for each in choices]
    return [
        json.dumps(each).encode() for each in (*written, {**HEAD, "choices": [], "usage": USAGE})
    ]


def pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@given(
    messages, st.sampled_from(("stop", "tool_calls", "length")), st.integers(1, 4), st.booleans()
)
@example({"calls": [("f", "no JSON"), ("local_shell", "{}")]}, "tool_calls", 1, True)
def test_chunks_make_the_complete_response(
    message: dict[str, Any], reason: str, size: int, alternate: bool
) -> None:
    for whole, streamed in zip(answers(), answers(), strict=True):
        _, expected = whole.complete(complete(message, reason))
        events = b"".join(
            streamed.chunk(chunk)[1] for chunk in chunks(message, reason, size, alternate)
        )
        events += streamed.end()
        assert json.loads(json.dumps(streamed.whole())) == json.loads(expected)
        for event in events.strip().split(b"\n\n"):
            kind, _, data = event.partition(b"\n")
            assert json.loads(data.removeprefix(b"data: "))["type"] == kind[7:].decode()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"city": "Rome"}', {"city": "Rome"}),
        ("", {}),
        ("no JSON", {"arguments": "no JSON"}),
        ("[1]", {"arguments": "[1]"}),
    ],
)
def test_arguments_of_a_message_are_an_object(written: str, expected: dict[str, Any]) -> None:
    _, body = MessagesAnswer(REQUEST).complete(complete({"calls": [("f", written)]}, "tool_calls"))
    (block,) = json.loads(body)["content"]
    assert block == {"type": "tool_use", "id": "c0", "name": "f", "input": expected}
