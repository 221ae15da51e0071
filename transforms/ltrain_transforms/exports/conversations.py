"""Conversations of a rollout: calls whose messages continue each other, each answer once.

A call joins the conversation whose messages, answers included, are the beginning of its own
history; so a branch, a sub-agent and a compacted history are conversations of their own. An
earlier answer that the client sent back changed, without its thinking say, begins a new one: the
old answer belongs to the history it was given in.
"""

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ltrain_transforms.exports.chat import Message, NotText, chat
from ltrain_transforms.history import (
    ComparableHistory,
    comparable_history,
    continues,
    message_parts,
    parse_messages,
)
from ltrain_transforms.selection import to_drops
from ltrain_transforms.untrusted import parse_json

REASONS = {
    "no_messages": "its messages were not recorded, or it has no answer",
    "several_choices": "the server gave several choices, and which one the agent took is not known",
    "redacted": "content was removed from it",
    "multimodal": "its messages hold images, audio or files",
}


@dataclass(slots=True)
class Conversation:
    execution_id: str
    messages: list[Message]
    """As the traces have them, the last answer included."""
    tools: list[Message]
    """The tools that were offered, as the API takes them."""
    history: ComparableHistory
    answers: dict[int, str] = field(default_factory=dict)
    """The call that gave each sampled answer, by its place in `messages`."""

    def before(self, place: int) -> list[Message]:
        """Give the messages before that place, as OpenAI has them."""
        return chat(self.messages[:place])

    def answer(self, place: int) -> Message:
        """Give the answer at that place, as OpenAI has it."""
        return chat([self.messages[place]])[0]


def conversations(calls: pl.DataFrame) -> tuple[dict[str, list[Conversation]], pl.DataFrame]:
    """Give the conversations of each execution, and as `DROPS` the calls that are in none.

    Args:
        calls: rows of `CALLS`, only those of the policy.
    """
    found: dict[str, list[Conversation]] = {}
    left_out: list[tuple[str, str]] = []
    for call in calls.sort("execution_id", "seq").iter_rows(named=True):
        asked, answers = parse_messages(call["input"]), parse_messages(call["output"])
        reason = _unusable(call, asked, answers)
        if reason is None:
            _join(found.setdefault(call["execution_id"], []), call, asked, answers[0])
        else:
            left_out.append((call["call_id"], reason))
    schema = {"id": pl.String, "reason": pl.String}
    drops = pl.DataFrame(left_out, schema, orient="row")
    return found, to_drops("exports", drops, "id", REASONS)


def _unusable(call: dict[str, Any], asked: list[Message], answers: list[Message]) -> str | None:
    if call["redacted"]:
        return "redacted"
    if not asked or not answers or not message_parts(answers[0]):
        return "no_messages"
    if len(answers) > 1:
        return "several_choices"
    try:
        chat([*asked, *answers])
    except NotText:
        return "multimodal"
    return None


def _join(
    open_ones: list[Conversation], call: dict[str, Any], asked: list[Message], answer: Message
) -> None:
    mine = comparable_history(asked, thinking=True)
    tools = _tools(call["tools"])
    going_on = (one for one in open_ones if one.tools == tools and continues(mine, one.history))
    one = max(going_on, key=lambda one: len(one.history), default=None)
    if one is None:
        one = Conversation(call["execution_id"], [], tools, ())
        open_ones.append(one)
    one.messages += asked[len(one.messages) :]
    one.answers[len(one.messages)] = call["call_id"]
    one.messages.append({**answer, "role": "assistant"})
    one.history = mine + comparable_history([answer], thinking=True)


def _tools(text: str | None) -> list[Message]:
    definitions = parse_json(text)
    offered = definitions if isinstance(definitions, list) else []
    return [_tool(one) for one in offered if isinstance(one, dict)]


def _tool(definition: Message) -> Message:
    """Give a tool as OpenAI defines it; the conventions' own form has its fields side by side."""
    if isinstance(definition.get("function"), dict):
        return definition
    names = ("name", "description", "parameters")
    function = {name: definition[name] for name in names if definition.get(name) is not None}
    return {"type": "function", "function": function}
