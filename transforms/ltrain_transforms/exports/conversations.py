"""Conversations of a rollout: calls whose messages continue each other, each response once.

A call joins the conversation whose messages, responses included, are a prefix of the history of
the call. A branch, a sub-agent and a compacted history are therefore conversations of their own. A
client that changes an earlier response in its history, for example by removing the thinking,
starts a new conversation: the old response belongs to the old history.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from ltrain_transforms.rendering import ChatMessage, NotText, read_tools, to_chat
from ltrain_transforms.source import to_drops
from ltrain_transforms.traces import (
    ComparableHistory,
    Fields,
    Message,
    comparable_history,
    continues,
    read_message,
    read_messages,
)

REASONS = {
    "no_messages": "its messages were not recorded, or it has no answer",
    "several_choices": "the server gave several choices, and no later call continues exactly "
    "one of them",
    "redacted": "content was removed from it",
    "multimodal": "its messages hold images, audio or files",
}


@dataclass(slots=True)
class Conversation:
    execution_id: str
    messages: list[Message]
    """In the format of traces, including the last response."""
    tools: list[Fields]
    """The tools offered to the model, in the format of OpenAI's API."""
    history: ComparableHistory
    answers: dict[int, str] = field(default_factory=dict)
    """The `call_id` of each sampled response, by its index in `messages`."""

    def prompt(self, index: int) -> list[ChatMessage]:
        """Return the messages before an index, in OpenAI's format."""
        return to_chat(self.messages[:index])

    def answer(self, index: int) -> ChatMessage:
        """Return the response at an index, in OpenAI's format."""
        return to_chat([self.messages[index]])[0]

    def until(self, index: int) -> "Conversation":
        """Return the conversation that ends with the response at an index."""
        end, answers = index + 1, {index: self.answers[index]}
        return replace(
            self, messages=self.messages[:end], history=self.history[:end], answers=answers
        )


def group_calls(calls: pl.DataFrame) -> tuple[dict[str, list[Conversation]], pl.DataFrame]:
    """Return the conversations of each execution, and `DROPS`: the calls that are in none.

    Args:
        calls: rows of `CALLS`, only those of the policy.
    """
    by_execution: dict[str, list[Conversation]] = {}
    left_out: list[tuple[str, str]] = []
    for call in calls.sort("execution_id", "seq").iter_rows(named=True):
        prompt, answers = read_messages(call["input"]), read_messages(call["output"])
        reason = _unusable(call, prompt, answers)
        if reason is None:
            answer = answers[call["choice"] or 0]
            _join(by_execution.setdefault(call["execution_id"], []), call, prompt, answer)
        else:
            left_out.append((call["call_id"], reason))
    schema = {"id": pl.String, "reason": pl.String}
    drops = pl.DataFrame(left_out, schema, orient="row")
    return by_execution, to_drops("exports", drops, "id", REASONS)


def _unusable(call: dict[str, Any], prompt: list[Message], answers: list[Message]) -> str | None:
    if call["redacted"]:
        return "redacted"
    if not prompt or not answers or not answers[call["choice"] or 0].parts:
        return "no_messages"
    if len(answers) > 1 and call["choice"] is None:
        return "several_choices"
    try:
        to_chat([*prompt, *answers])
    except NotText:
        return "multimodal"
    return None


def _join(
    conversations: list[Conversation], call: dict[str, Any], prompt: list[Message], answer: Message
) -> None:
    """Add a call to the longest conversation that it continues, or start a new conversation."""
    history = comparable_history(prompt, thinking=True)
    tools = read_tools(call["tools"])
    continued = (
        conversation
        for conversation in conversations
        if conversation.tools == tools and continues(history, conversation.history)
    )
    longest = max(continued, key=lambda conversation: len(conversation.history), default=None)
    if longest is None:
        longest = Conversation(call["execution_id"], [], tools, ())
        conversations.append(longest)
    longest.messages += prompt[len(longest.messages) :]
    longest.answers[len(longest.messages)] = call["call_id"]
    longest.messages.append(read_message({**answer.fields, "role": "assistant"}))
    longest.history = history + comparable_history([answer], thinking=True)
