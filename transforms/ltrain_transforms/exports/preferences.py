"""Preference pairs: the same history answered in two ways, by a better and a worse rollout.

A line is `{"prompt": [...], "chosen": [...], "rejected": [...]}`, TRL's conversational format: the
prompt is all that two rollouts of a group had in common, and each answer is the one message in
which they part. Rollouts that part in what their surroundings said are no pair.
"""

import pickle
from itertools import combinations
from typing import NamedTuple

import polars as pl

from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.converted import Converted, Line, Lines, line
from ltrain_transforms.exports.left_out import LeftOut
from ltrain_transforms.exports.rollouts import STAGE, rollouts, talks
from ltrain_transforms.exports.work import Piece, Work, lineage
from ltrain_transforms.selection import concat_table, to_drops
from ltrain_transforms.tables import DROPS

REASONS = {
    "alone": "no other rollout of its group can be compared with it",
    "no_difference": "all rollouts of its group are worth the same",
    "no_fork": "where it parts from the others of its group, one of the two has no answer",
    "not_paired": "the pairs of its group are of rollouts that differ more; --pairs takes more",
}

SAME = 1e-9
"""Outcomes nearer than this are equal."""


class Rollout(NamedTuple):
    worth: float
    execution_id: str
    talk: Conversation
    """Its first."""


class Pair(NamedTuple):
    better: Rollout
    worse: Rollout
    fork: int
    """The message in which they part."""


def preferences(work: Work) -> Converted:
    """Give the pairs of each group that differ most in their outcome."""
    found = rollouts(work.dataset)
    left_out, talking = LeftOut(found), {}
    for batch in work.batches():
        spoken = talks(batch, found, work.options.policy)
        left_out.talks(spoken)
        for one, own in spoken.by_execution.items():
            talking[one] = work.keep(pickle.dumps(own[0]))
    pieces: list[Piece] = []
    unpaired: list[tuple[str, str]] = []
    groups = _groups(found.taken)
    for done, (name, ids, worths) in enumerate(groups.iter_rows(), 1):
        work.progress("pairs", done, groups.height)
        there = [(worth, one) for one, worth in zip(ids, worths, strict=True) if one in talking]
        if name is None:  # rollouts without a group lie together here, and are compared with nobody
            unpaired += [(one, "alone") for _, one in there]
            continue
        members = [
            Rollout(worth, one, pickle.loads(work.kept(talking[one]))) for worth, one in there
        ]
        pairs = _pairs(members)
        chosen = pairs[: work.options.pairs]
        pieces += [_piece(work, pair) for pair in chosen]
        unpaired += _unpaired(members, pairs, chosen)
    reasons = pl.DataFrame(unpaired, {"id": pl.String, "reason": pl.String}, orient="row")
    drops = concat_table(DROPS, left_out.drops(), to_drops(STAGE, reasons, "id", REASONS))
    return Converted(Lines(work.each(pieces)), lineage(pieces), drops)


def _groups(taken: pl.DataFrame) -> pl.DataFrame:
    """Give the ids and the outcomes of each group, which may lie in several batches."""
    by = taken.group_by("group_id", maintain_order=True)
    return by.agg("execution_id", "outcome_reward")


def _pairs(members: list[Rollout]) -> list[Pair]:
    """Give every two that differ in worth and part in an answer, the widest apart first."""
    best_first = sorted(members, key=lambda one: (-one.worth, one.execution_id))
    pairs = [
        Pair(better, worse, fork)
        for better, worse in combinations(best_first, 2)
        if better.worth - worse.worth > SAME
        and (fork := _fork(better.talk, worse.talk)) is not None
    ]
    return sorted(pairs, key=lambda pair: pair.worse.worth - pair.better.worth)


def _fork(one: Conversation, other: Conversation) -> int | None:
    """Find the message in which two part, where both of it are answers of the policy."""
    both = enumerate(zip(one.history, other.history, strict=False))
    place = next((at for at, (mine, its) in both if mine != its), None)
    return place if place in one.answers and place in other.answers else None


def _unpaired(
    members: list[Rollout], pairs: list[Pair], taken: list[Pair]
) -> list[tuple[str, str]]:
    used = {one.execution_id for pair in taken for one in (pair.better, pair.worse)}
    able = {one.execution_id for pair in pairs for one in (pair.better, pair.worse)}
    worths = [one.worth for one in members]
    reasons = []
    for one in members:
        if len(members) < 2:
            reason = "alone"
        elif max(worths) - min(worths) <= SAME:
            reason = "no_difference"
        else:
            reason = "not_paired" if one.execution_id in able else "no_fork"
        if one.execution_id not in used:
            reasons.append((one.execution_id, reason))
    return reasons


def _piece(work: Work, pair: Pair) -> Piece:
    ids = [pair.better.execution_id, pair.worse.execution_id]
    return Piece(ids[0], work.keep(line(_line(pair))), [ids])


def _line(pair: Pair) -> Line:
    better, worse = pair.better.talk, pair.worse.talk
    row: Line = {
        "prompt": better.before(pair.fork),
        "chosen": [better.answer(pair.fork)],
        "rejected": [worse.answer(pair.fork)],
    }
    return {**row, **({"tools": better.tools} if better.tools else {})}
