"""Preference pairs: the same history with a better and a worse response.

A line is `{"prompt": [...], "chosen": [...], "rejected": [...]}`, TRL's conversational format.
Pairs are made in each group of executions, and are of two kinds:

- two rollouts with different outcomes: the prompt is their common history; `chosen` and `rejected`
  hold the first message in which they differ. Two rollouts that first differ in a message of a user
  or a tool are not a pair.
- two answers to the same request, such as a retry within one session, of which evaluations rate one
  better. Rules do not rate them, and an answer without an evaluation is compared with nothing.
"""

import pickle
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import islice
from typing import NamedTuple

import polars as pl

from ltrain_transforms.datasets import DatasetBatch
from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.conversion import ExportResult, JsonLines, Line, encode_line
from ltrain_transforms.exports.conversion_files import ExportJob, FileRange, Piece, lineage
from ltrain_transforms.exports.rollouts import (
    GROUP,
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


class Candidate(NamedTuple):
    score: float
    """The outcome of a rollout, or the sum of the evaluations of an answer."""
    execution_id: str
    conversation: Conversation
    """The first conversation of a rollout; of an answer, the conversation that ends with it."""


class PreferencePair(NamedTuple):
    better: Candidate
    worse: Candidate
    fork: int
    """The index of the first message in which they differ."""

    @property
    def calls(self) -> frozenset[str]:
        return frozenset(each.conversation.answers[self.fork] for each in self[:2])


def export_preferences(job: ExportJob) -> ExportResult:
    """Export the pairs of each group, and of each request in it, whose scores differ most."""
    rollouts = read_rollouts(job.dataset)
    drops = ExportDrops(rollouts)
    stored = _store_conversations(job, rollouts, drops)
    pieces: list[Piece] = []
    unpaired: list[tuple[str, str]] = []
    groups = _groups(rollouts.selected)
    for done, (ids, outcomes) in enumerate(groups.iter_rows(), 1):
        job.progress("pairs", done, groups.height)
        members, answers = list[Candidate](), list[Candidate]()
        for execution, outcome in zip(ids, outcomes, strict=True):
            if execution in stored:
                first, rated = pickle.loads(job.load(stored[execution]))
                members.append(Candidate(outcome, execution, first))
                answers += rated
        pairs = _select_pairs([members, *_by_request(answers)], job.options.pairs)
        pieces += [_piece(job, pair) for pair in pairs]
        unpaired += _unpaired(members, pairs)
    reasons = pl.DataFrame(unpaired, {"id": pl.String, "reason": pl.String}, orient="row")
    all_drops = concat_table(DROPS, drops.drops(), to_drops(STAGE, reasons, "id", REASONS))
    return ExportResult(JsonLines(job.load_pieces(pieces)), lineage(pieces), all_drops)


def _store_conversations(
    job: ExportJob, rollouts: ExportRollouts, drops: ExportDrops
) -> dict[str, FileRange]:
    """Store the first conversation and the rated answers of each execution on disk."""
    stored = {}
    for batch in job.batches():
        conversations, ratings = (
            read_conversations(batch, rollouts, job.options.policy),
            _read_ratings(batch),
        )
        drops.add_batch(conversations)
        for execution, own in conversations.by_execution.items():
            content = (own[0], list(_rated_answers(own, ratings)))
            stored[execution] = job.store(pickle.dumps(content))
    return stored


def _read_ratings(batch: DatasetBatch) -> dict[tuple[str, str], float]:
    """Return the sum of the evaluations of each evaluated call, by execution and call."""
    rewards = batch.table("rewards", ("execution_id", "call_id", "source", "value"))
    of_calls = rewards.filter(pl.col("call_id").is_not_null(), pl.col("source") != "rule")
    sums = of_calls.group_by("execution_id", "call_id").agg(pl.col("value").sum())
    return {(execution, call): value for execution, call, value in sums.iter_rows()}


def _rated_answers(
    own: Sequence[Conversation], ratings: Mapping[tuple[str, str], float]
) -> Iterator[Candidate]:
    """Yield the evaluated answers of an execution."""
    for conversation in own:
        for index, call in conversation.answers.items():
            key = conversation.execution_id, call
            if key in ratings:
                yield Candidate(ratings[key], key[0], conversation.until(index))


def _by_request(answers: Sequence[Candidate]) -> list[list[Candidate]]:
    """Return the answers to each request."""
    found = defaultdict[str, list[Candidate]](list)
    for each in answers:
        found[repr((each.conversation.history[:-1], each.conversation.tools))].append(each)
    return list(found.values())


def _groups(selected: pl.DataFrame) -> pl.DataFrame:
    """Return the ids and outcomes of each group, which several batches may share."""
    by = selected.group_by(GROUP, maintain_order=True)
    return by.agg("execution_id", "outcome_reward").select("execution_id", "outcome_reward")


def _select_pairs(sets: Sequence[list[Candidate]], most: int) -> list[PreferencePair]:
    """Return at most so many pairs of each set of candidates, and the same two answers once."""
    selected = dict[frozenset[str], PreferencePair]()
    for candidates in sets:
        for pair in islice(_pairs(candidates), most):
            selected.setdefault(pair.calls, pair)
    return list(selected.values())


def _pairs(candidates: list[Candidate]) -> Iterator[PreferencePair]:
    """Yield the pairs that differ in score and in a response, the largest difference first.

    A question of traffic may have thousands of answers, so the pairs are not listed.
    """
    best = sorted(candidates, key=lambda each: (-each.score, each.execution_id))
    worst = sorted(candidates, key=lambda each: (each.score, each.execution_id))
    # for each of the best, the worst candidate that it was not compared with
    waiting = [(worst[0].score - each.score, index, 0) for index, each in enumerate(best)]
    heapify(waiting)
    while waiting and waiting[0][0] < -SAME:
        _, index, place = waiting[0]
        better, worse = best[index], worst[place]
        if (fork := _fork(better.conversation, worse.conversation)) is not None:
            yield PreferencePair(better, worse, fork)
        difference = worst[place + 1].score - better.score
        heapreplace(waiting, (difference, index, place + 1))


def _fork(left: Conversation, right: Conversation) -> int | None:
    """Return the index of the first difference, if both messages are responses of the policy."""
    both = enumerate(zip(left.history, right.history, strict=False))
    index = next((index for index, (mine, other) in both if mine != other), None)
    return index if index in left.answers and index in right.answers else None


def _unpaired(
    members: list[Candidate], selected: list[PreferencePair]
) -> Iterator[tuple[str, str]]:
    """Yield id and reason of each rollout that is in no selected pair."""
    used = {each.execution_id for pair in selected for each in pair[:2]}
    outcomes = [member.score for member in members]
    for member in members:
        if member.execution_id in used:
            continue
        if len(members) < 2:
            reason = "alone"
        elif max(outcomes) - min(outcomes) <= SAME:
            reason = "no_difference"
        else:
            reason = "not_paired" if _has_pair(member, members) else "no_fork"
        yield member.execution_id, reason


def _has_pair(member: Candidate, members: list[Candidate]) -> bool:
    others = (each for each in members if abs(each.score - member.score) > SAME)
    return any(_fork(member.conversation, each.conversation) is not None for each in others)


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
