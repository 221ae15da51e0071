"""Preference pairs: the same history with the responses of a better and a worse rollout.

A line is `{"prompt": [...], "chosen": [...], "rejected": [...]}`, TRL's conversational format. The
prompt is the common history of two rollouts of a group; `chosen` and `rejected` hold the first
message in which they differ. Two rollouts that first differ in a message of a user or a tool are
not a pair.
"""

import pickle
from itertools import combinations
from typing import NamedTuple

import polars as pl

from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.conversion import ExportResult, JsonLines, Line, encode_line
from ltrain_transforms.exports.conversion_files import ExportJob, FileRange, Piece, lineage
from ltrain_transforms.exports.rollouts import (
    STAGE,
    ExportDrops,
    ExportRollouts,
    read_conversations,
    read_rollouts,
)
from ltrain_transforms.source import concat_table, to_drops
from ltrain_transforms.tables import DROPS

REASONS = {
    "alone": "no other rollout of its group can be compared with it",
    "no_difference": "all rollouts of its group have the same outcome",
    "no_fork": "where it first differs from the others of its group, one of the two has no answer",
    "not_paired": "other pairs of its group differ more; --pairs raises the number of pairs",
}

SAME = 1e-9
"""Two outcomes that differ by less than this are equal."""


class RankedRollout(NamedTuple):
    outcome: float
    execution_id: str
    conversation: Conversation
    """The first conversation of the rollout."""


class PreferencePair(NamedTuple):
    better: RankedRollout
    worse: RankedRollout
    fork: int
    """The index of the first message in which they differ."""


def export_preferences(job: ExportJob) -> ExportResult:
    """Export the pairs of each group whose outcomes differ most."""
    rollouts = read_rollouts(job.dataset)
    drops = ExportDrops(rollouts)
    stored = _store_first_conversations(job, rollouts, drops)
    pieces: list[Piece] = []
    unpaired: list[tuple[str, str]] = []
    groups = _groups(rollouts.selected)
    for done, (group, ids, outcomes) in enumerate(groups.iter_rows(), 1):
        job.progress("pairs", done, groups.height)
        results = zip(ids, outcomes, strict=True)
        usable = [(outcome, execution) for execution, outcome in results if execution in stored]
        if group is None:  # rollouts without a group, which are compared with nothing
            unpaired += [(execution, "alone") for _, execution in usable]
            continue
        members = [
            RankedRollout(outcome, execution, pickle.loads(job.load(stored[execution])))
            for outcome, execution in usable
        ]
        pairs = _pairs(members)
        selected = pairs[: job.options.pairs]
        pieces += [_piece(job, pair) for pair in selected]
        unpaired += _unpaired(members, pairs, selected)
    reasons = pl.DataFrame(unpaired, {"id": pl.String, "reason": pl.String}, orient="row")
    all_drops = concat_table(DROPS, drops.drops(), to_drops(STAGE, reasons, "id", REASONS))
    return ExportResult(JsonLines(job.load_pieces(pieces)), lineage(pieces), all_drops)


def _store_first_conversations(
    job: ExportJob, rollouts: ExportRollouts, drops: ExportDrops
) -> dict[str, FileRange]:
    """Store the first conversation of each execution on disk."""
    stored = {}
    for batch in job.batches():
        conversations = read_conversations(batch, rollouts, job.options.policy)
        drops.add_batch(conversations)
        for execution, own in conversations.by_execution.items():
            stored[execution] = job.store(pickle.dumps(own[0]))
    return stored


def _groups(selected: pl.DataFrame) -> pl.DataFrame:
    """Return the ids and outcomes of each group, which several batches may share."""
    by = selected.group_by("group_id", maintain_order=True)
    return by.agg("execution_id", "outcome_reward")


def _pairs(members: list[RankedRollout]) -> list[PreferencePair]:
    """Return all pairs that differ in outcome and in a response, the largest difference first."""
    best_first = sorted(members, key=lambda member: (-member.outcome, member.execution_id))
    pairs = [
        PreferencePair(better, worse, fork)
        for better, worse in combinations(best_first, 2)
        if better.outcome - worse.outcome > SAME
        and (fork := _fork(better.conversation, worse.conversation)) is not None
    ]
    return sorted(pairs, key=lambda pair: pair.worse.outcome - pair.better.outcome)


def _fork(left: Conversation, right: Conversation) -> int | None:
    """Return the index of the first difference, if both messages are responses of the policy."""
    both = enumerate(zip(left.history, right.history, strict=False))
    index = next((index for index, (mine, other) in both if mine != other), None)
    return index if index in left.answers and index in right.answers else None


def _unpaired(
    members: list[RankedRollout], pairs: list[PreferencePair], selected: list[PreferencePair]
) -> list[tuple[str, str]]:
    """Return id and reason of each member that is in no selected pair."""
    used = {member.execution_id for pair in selected for member in (pair.better, pair.worse)}
    paired = {member.execution_id for pair in pairs for member in (pair.better, pair.worse)}
    outcomes = [member.outcome for member in members]
    reasons = []
    for member in members:
        if len(members) < 2:
            reason = "alone"
        elif max(outcomes) - min(outcomes) <= SAME:
            reason = "no_difference"
        else:
            reason = "not_paired" if member.execution_id in paired else "no_fork"
        if member.execution_id not in used:
            reasons.append((member.execution_id, reason))
    return reasons


def _piece(job: ExportJob, pair: PreferencePair) -> Piece:
    ids = [pair.better.execution_id, pair.worse.execution_id]
    return Piece(ids[0], job.store(encode_line(_line(pair))), [ids])


def _line(pair: PreferencePair) -> Line:
    better, worse = pair.better.conversation, pair.worse.conversation
    row: Line = {
        "prompt": better.prompt(pair.fork),
        "chosen": [better.answer(pair.fork)],
        "rejected": [worse.answer(pair.fork)],
    }
    return {**row, **({"tools": better.tools} if better.tools else {})}
