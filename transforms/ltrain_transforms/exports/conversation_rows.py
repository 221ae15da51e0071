"""Rows of conversations: the part that is the same in all formats with such rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.conversion import ExportResult, JsonLines, Line, encode_line
from ltrain_transforms.exports.conversion_files import ExportJob, Piece, lineage
from ltrain_transforms.exports.rollouts import (
    CONVERSATION_COLUMNS,
    STAGE,
    BatchConversations,
    ExportDrops,
    read_conversations,
    read_rollouts,
    select_best,
)
from ltrain_transforms.source import to_drops

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Facts:
    """The rows of a dataset that belong to a conversation, without its messages."""

    execution: Fields
    """The row of its execution, with `outcome_reward`."""
    calls: Mapping[str, Fields]
    """The requested columns of the calls of its batch, by call id."""


class NotHeld(ValueError):
    """A conversation that a format cannot hold; the text is the reason of the drop."""


Rows = Iterable[tuple[Line, list[str]]]
"""Rows, each with the ids of its calls."""

MakeRows = Callable[[Conversation, Facts], Rows]
"""Returns the rows of a conversation, or raises `NotHeld`."""


@dataclass(slots=True)
class ConversationExport:
    """The pieces of an export of the best rollouts, and its drops."""

    job: ExportJob
    pieces: list[Piece]
    drops: pl.DataFrame

    def result(self) -> ExportResult:
        """Return the rows as JSON Lines."""
        rows = JsonLines(self.job.load_pieces(self.pieces))
        return ExportResult(rows, lineage(self.pieces), self.drops)


def export_conversations(
    job: ExportJob,
    make: MakeRows,
    columns: Sequence[str] = (),
    reasons: dict[str, str] | None = None,
) -> ConversationExport:
    """Store the rows of the conversations of the best rollouts.

    Args:
        columns: columns of `calls` for `Facts.calls`.
        reasons: the reasons of `NotHeld`, and what they mean.
    """
    rollouts = select_best(read_rollouts(job.dataset), job.options)
    executions = {row["execution_id"]: row for row in rollouts.selected.iter_rows(named=True)}
    drops, pieces = ExportDrops(rollouts), list[Piece]()
    further = [name for name in columns if name not in CONVERSATION_COLUMNS]
    for batch in job.batches():
        conversations = read_conversations(
            batch, rollouts, job.options.policy, (*CONVERSATION_COLUMNS, *further)
        )
        drops.add_batch(conversations)
        calls = _call_facts(conversations, columns)
        not_held: list[tuple[str, str]] = []
        for execution, own in conversations.by_execution.items():
            facts = Facts(executions[execution], calls)
            rows = [row for each in own for row in _rows(make, each, facts, not_held)]
            content = b"".join(encode_line(line) for line, _ in rows)
            pieces.append(Piece(execution, job.store(content), [ids for _, ids in rows]))
        frame = pl.DataFrame(not_held, {"id": pl.String, "reason": pl.String}, orient="row")
        drops.add_calls("not_held", to_drops(STAGE, frame, "id", reasons or {}), conversations)
    return ConversationExport(job, sorted(pieces), drops.drops())


def _call_facts(conversations: BatchConversations, columns: Sequence[str]) -> dict[str, Fields]:
    if not columns:
        return {}
    facts = conversations.calls.select("call_id", *columns)
    return {row["call_id"]: row for row in facts.iter_rows(named=True)}


def _rows(
    make: MakeRows, conversation: Conversation, facts: Facts, not_held: list[tuple[str, str]]
) -> Iterator[tuple[Line, list[str]]]:
    try:
        yield from make(conversation, facts)
    except NotHeld as error:
        not_held += [(call, str(error)) for call in conversation.answers.values()]
