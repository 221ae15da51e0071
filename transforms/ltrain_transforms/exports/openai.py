"""OpenAI's fine-tuning format: chats without thinking, which its API refuses.

A line is `{"messages": [...]}`, with `tools` if any were offered. Assistant messages have `weight`
as in `sft`. An answer that holds nothing but thinking cannot be written.
"""

from ltrain_transforms.exports.conversation_rows import (
    Facts,
    NotHeld,
    Rows,
    export_conversations,
)
from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.conversion import ExportResult
from ltrain_transforms.exports.conversion_files import ExportJob
from ltrain_transforms.exports.sft import chat_line
from ltrain_transforms.rendering import ChatMessage

ONLY_THINKING = "only_thinking"
REASONS = {ONLY_THINKING: "an answer of its conversation holds nothing but thinking"}


def export_openai(job: ExportJob) -> ExportResult:
    """Export the conversations of the best rollouts."""
    return export_conversations(job, _rows, reasons=REASONS).result()


def _rows(conversation: Conversation, _: Facts) -> Rows:
    line = chat_line(conversation)
    line["messages"] = [_without_thinking(message) for message in line["messages"]]
    yield line, list(conversation.answers.values())


def _without_thinking(message: ChatMessage) -> ChatMessage:
    kept = {name: value for name, value in message.items() if name != "reasoning_content"}
    if kept["role"] == "assistant" and not (kept["content"] or kept.get("tool_calls")):
        raise NotHeld(ONLY_THINKING)
    return kept
