"""The token ids of the messages that a chat adds to a turn.

A chat template may render an earlier answer otherwise than the policy wrote it, such as without
its thinking. So the server renders the new messages after a question and a stand-in for the answer:

* with two different stand-ins. The ids after the stand-in are the common end of both prompts.
* with other texts in the new messages. The common beginning of both prompts contains the end of the
  answer, and the ids after it are those of the new messages.

The plain prompt of the whole chat must end with the same ids.

The library `renderers` has such a function, which is not used even where it renders the prompts of
a Tinker server: it knows templates by the name of a published model, and neither those of Mistral,
Gemma 3, SmolLM and Phi nor a changed one; and for Qwen3 it does not continue after a new question.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson

from ltrain_train.gateway.continuation.known_turns import PROMPT_FIELDS
from ltrain_train.gateway.conversations.message_digests import Message, text_of, tool_calls
from ltrain_train.gateway.serving.upstream import Upstream

OF_WHOLE_CHAT = ("tools", "tool_choice", "response_format", "documents")
"""Fields that are rendered before the answer."""
TEXT = secrets.token_hex(8)
"""A text that no model has seen."""


async def render_new(
    upstream: Upstream, body: Mapping[str, Any], answer: int, end: int
) -> list[int] | None:
    """Return the ids that follow the end of an answer; None if vLLM does not render them so.

    Args:
        body: the chat, whose `model` is that of the server.
        answer: the index of the answer in its messages.
        end: the id by which the policy ended the answer.

    Raises:
        UpstreamFailed: when the server does not answer.
    """
    fields = {name: body[name] for name in ("model", *PROMPT_FIELDS) if name in body}
    messages = body["messages"]
    earlier, new = messages[answer], messages[answer + 1 :]
    chats = [
        _stand_in(earlier, TEXT + "1", new),
        _stand_in(earlier, TEXT + "2", new),
        _stand_in(earlier, TEXT + "1", [_replaced(each) for each in new]),
    ]
    shorter = {name: value for name, value in fields.items() if name not in OF_WHOLE_CHAT}
    bodies = [{**shorter, "messages": each} for each in chats]
    rendered = await asyncio.gather(
        *(_render(upstream, each) for each in (*bodies, {**fields, "messages": messages}))
    )
    first, second, other, whole = rendered
    if not all(rendered) or first == second:
        return None
    start = len(first) - _common(first[::-1], second[::-1])
    try:
        at = first.index(end, start)
    except ValueError:
        return None
    if at >= _common(first, other) or whole[at - len(first) :] != first[at:]:
        return None
    return first[at + 1 :]


async def _render(upstream: Upstream, body: dict[str, Any]) -> list[int]:
    """Return the ids of a chat; none if the server refuses it."""
    status, text = await upstream.render("chat", body)
    if status != HTTPStatus.OK:
        return []
    try:
        return [int(each) for each in orjson.loads(text)["token_ids"]]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return []


def _stand_in(earlier: Message, text: str, new: Sequence[Message]) -> list[Message]:
    """Return a chat whose answer has the tools of an answer, and this text."""
    calls = [_with_arguments(each, text) for each in tool_calls(earlier)]
    content = text if text_of(earlier) or not calls else earlier.get("content")
    answer = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
    return [{"role": "user", "content": TEXT}, answer, *new]


def _with_arguments(call: Mapping[str, Any], text: str) -> dict[str, Any]:
    arguments = orjson.dumps({"text": text}).decode()
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _replaced(message: Message) -> dict[str, Any]:
    return {**message, "content": TEXT}


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of ids with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
