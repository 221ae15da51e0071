"""Supervised fine-tuning: the conversations of the best rollouts, in OpenAI's chat format.

A line is `{"messages": [...]}`, with `tools` if any were offered. If a conversation has several
assistant messages, those that the policy sampled have `weight` 1, the others 0.
"""

from ltrain_transforms.exports.conversation_rows import Facts, Rows, export_conversations
from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.conversion import ExportResult, Line
from ltrain_transforms.exports.conversion_files import ExportJob
from ltrain_transforms.rendering import ChatMessage, to_chat


def export_sft(job: ExportJob) -> ExportResult:
    """Export the conversations of the best rollouts."""
    return export_conversations(job, _rows).result()


def _rows(conversation: Conversation, _: Facts) -> Rows:
    yield chat_line(conversation), list(conversation.answers.values())


def chat_line(conversation: Conversation) -> Line:
    """Return a conversation with the weights of its answers."""
    messages = [
        _with_weight(converted, 1 if index in conversation.answers else 0)
        for index, message in enumerate(conversation.messages)
        for converted in to_chat([message])
    ]
    weighted = [message for message in messages if "weight" in message]
    if len(weighted) == 1:
        del weighted[0]["weight"]
    return {"messages": messages, **({"tools": conversation.tools} if conversation.tools else {})}


def _with_weight(message: ChatMessage, weight: int) -> ChatMessage:
    return {**message, "weight": weight} if message["role"] == "assistant" else message
