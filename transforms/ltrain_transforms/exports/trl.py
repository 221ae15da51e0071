"""TRL's conversational prompt-completion format: a row for each answer of the policy.

A line is `{"prompt": [...], "completion": [...]}`, with `tools` if any were offered. TRL trains on
the completion only. The arguments of tool calls are objects, as chat templates read them.
`preferences` has TRL's format of pairs.
"""

from collections.abc import Iterable

from ltrain_transforms.exports.conversation_rows import Facts, Rows, export_conversations
from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.conversion import ExportResult, Line
from ltrain_transforms.exports.conversion_files import ExportJob
from ltrain_transforms.rendering import ChatMessage
from ltrain_transforms.traces import parse_json


def export_trl(job: ExportJob) -> ExportResult:
    """Export each answer of the best rollouts with the messages before it."""
    return export_conversations(job, _rows).result()


def _rows(conversation: Conversation, _: Facts) -> Rows:
    for index, call in conversation.answers.items():
        line: Line = {
            "prompt": _messages(conversation.prompt(index)),
            "completion": _messages([conversation.answer(index)]),
        }
        yield {**line, **({"tools": conversation.tools} if conversation.tools else {})}, [call]


def _messages(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    return [
        {**message, "tool_calls": [_call(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def _call(call: ChatMessage) -> ChatMessage:
    function = call["function"]
    arguments = parse_json(function["arguments"])
    known = arguments if isinstance(arguments, dict) else function["arguments"]
    return {**call, "function": {**function, "arguments": known}}
