"""Supervised fine-tuning: the conversations of the best rollouts, in OpenAI's chat format.

A line is `{"messages": [...]}`, with `tools` if any were offered. If a conversation has several
assistant messages, those that the policy sampled have `weight` 1, the others 0.
"""

from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.conversion import ExportResult, JsonLines, Line, encode_line
from ltrain_transforms.exports.conversion_files import ExportJob, Piece, lineage
from ltrain_transforms.exports.rollouts import (
    ExportDrops,
    read_conversations,
    read_rollouts,
    select_best,
)
from ltrain_transforms.rendering import ChatMessage, to_chat


def export_sft(job: ExportJob) -> ExportResult:
    """Export the conversations of the best rollouts."""
    rollouts = select_best(read_rollouts(job.dataset), job.options)
    drops, pieces = ExportDrops(rollouts), []
    for batch in job.batches():
        conversations = read_conversations(batch, rollouts, job.options.policy)
        drops.add_batch(conversations)
        for execution, own in conversations.by_execution.items():
            rows = b"".join(encode_line(_line(conversation)) for conversation in own)
            answers = [list(conversation.answers.values()) for conversation in own]
            pieces.append(Piece(execution, job.store(rows), answers))
    pieces.sort()
    return ExportResult(JsonLines(job.load_pieces(pieces)), lineage(pieces), drops.drops())


def _line(conversation: Conversation) -> Line:
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
