"""The rollouts of one task in a wave, side by side, and the call at which they part."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument.machine import visible
from ltrain_transforms.datasets import derive
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports import GroupReference, Kind, Reference
from ltrain_transforms.show.display_text import (
    agent_label,
    call_status,
    format_signed,
    output_text,
    shorten,
)
from ltrain_transforms.show.trained_rows import shade_class
from ltrain_transforms.show.tree import Row
from ltrain_transforms.source import CreditScope, Selection, list_rollouts, read_spans

MAX_OUTPUT = 400
"""Characters of an output that are shown; the page of the rollout has all."""
MAX_TEXT = 4000
"""Characters of an output that are compared word by word."""
STEPS = ("llm", "tool", "retrieval", "embedding")
"""The kinds of calls that are compared; agents and nodes only enclose them."""


@dataclass(frozen=True, slots=True)
class MemberCall:
    """A call of a rollout, as text."""

    label: str
    status: str
    output: str
    advantage: float | None
    """None if the call is not trained."""
    rewards: tuple[tuple[str, float], ...]
    """Rule and value of the rewards of this call."""
    text: str
    """The beginning of the output, with its lines."""
    digest: str
    """Of the whole output."""
    seq: int = 0
    """Its position in the execution."""

    @property
    def choice(self) -> tuple[str, str, str]:
        """The key of a rollout: two rollouts that have done the same have the same key."""
        return self.label, self.status, self.digest


@dataclass(frozen=True, slots=True)
class Member:
    """An attempt at the task."""

    rollout: Reference
    attempt: str
    outcome: str
    """How it ended: ok, error, timeout …; '' if it is not closed."""
    reward: float | None
    """The reward of the whole rollout; None if it has none."""
    rewards: tuple[tuple[str, float], ...]
    """Rule and value of the rewards of the whole rollout."""
    drops: tuple[str, ...]
    """Stage and reason of what is not trained of it."""
    calls: tuple[MemberCall, ...]

    @property
    def heat(self) -> list[tuple[str, str]]:
        """A CSS class and words for each call with an advantage, shaded by the largest one."""
        trained = [(call, call.advantage) for call in self.calls if call.advantage is not None]
        largest = max((abs(advantage) for _, advantage in trained), default=0.0)
        return [
            (
                shade_class("advantage", advantage, largest),
                f"{call.label}: advantage {format_signed(advantage)}",
            )
            for call, advantage in trained
        ]


@dataclass(frozen=True, slots=True)
class Group:
    reference: GroupReference
    members: tuple[Member, ...]
    """The best first."""
    shared: int
    """Number of calls at the beginning that are the same in all members."""
    judged_by: str
    labels: tuple[str, ...] = ()
    """The policy version of each member, where they are compared."""

    @property
    def title(self) -> str:
        return f"task {self.reference.task}, {self.reference.mode} wave {self.reference.wave}"

    def pair(self, first: str, second: str) -> tuple[Member, Member] | None:
        """Return two members by the ids of their rollouts.

        In place of an id that is none of them: the first of each version, or the best and the last
        of all. None if there is one member.
        """
        if len(self.members) < 2:
            return None
        by_id = {member.rollout.id: member for member in self.members}
        other = self.labels.index(self.labels[-1]) if self.labels else 0
        default = (self.members[0], self.members[other or -1])
        return by_id.get(first, default[0]), by_id.get(second, default[1])

    def with_outcome(self, outcome: str) -> "Group":
        """Return the group with the members that ended so only."""
        kept = [at for at, member in enumerate(self.members) if member.outcome == outcome]
        members = tuple(self.members[at] for at in kept)
        labels = tuple(self.labels[at] for at in kept) if self.labels else ()
        return replace(self, members=members, labels=labels, shared=count_shared(members))

    def same_call(self, rollout: str, seq: int) -> list[tuple[Member, MemberCall | None]]:
        """Return each member with the call that corresponds to one of a rollout: as the n-th of its
        kind, name and agent. Empty if the rollout has no such call.
        """
        calls = [
            call for member in self.members if member.rollout.id == rollout for call in member.calls
        ]
        labels = [call.label for call in calls if call.seq <= seq]
        if not any(call.seq == seq for call in calls):
            return []
        label, count = labels[-1], labels.count(labels[-1])
        found = list[tuple[Member, MemberCall | None]]()
        for member in self.members:
            same = [call for call in member.calls if call.label == label]
            found.append((member, same[count - 1] if len(same) >= count else None))
        return found

    def rows(self) -> list[list[MemberCall | None]]:
        """Return the calls after the shared ones: a row for each position, a column a member."""
        longest = max((len(member.calls) for member in self.members), default=0)
        return [
            [member.calls[at] if at < len(member.calls) else None for member in self.members]
            for at in range(self.shared, longest)
        ]


def read_group(store: Store, recipe: Recipe, recipe_label: str, place: GroupReference) -> Group:
    """Read the rollouts of a group, and credit them by a recipe.

    Raises:
        NothingToShow: when the store has no rollout of the group.
    """
    source = recipe.source.without_selection()
    selection = Selection(run=place.run, mode=place.mode, wave=place.wave, task=place.task)
    rollouts = list_rollouts(store, source, selection)
    selection = Selection(run=place.run, rollouts=rollouts)
    spans, _ = read_spans(store, source, selection, metrics=recipe.metrics)
    derived = derive(spans, recipe, CreditScope((place.mode,)))
    outcomes = dict(derived.outcomes.select("execution_id", "reward").iter_rows())
    executions = derived.tables["executions"].filter(pl.col("rollout_id").is_not_null()).to_dicts()
    if not executions:
        raise NothingToShow(
            f"The store has no rollout of task '{place.task}' in wave {place.wave} of run "
            f"'{place.run}' in mode '{place.mode}'."
        )
    rows = {
        name: _by_execution(derived.tables[name]) for name in ("calls", "rewards", "transitions")
    }
    drops = derived.tables["drops"]
    members = [
        _member(execution, outcomes.get(execution["execution_id"]), rows, drops)
        for execution in executions
    ]
    members.sort(key=lambda one: (-(one.reward or 0.0), one.reward is None, one.rollout.id))
    return Group(place, tuple(members), count_shared(members), recipe_label)


def count_shared(members: Sequence[Member]) -> int:
    """Return the number of calls at the beginning that are the same in all members."""
    shared = 0
    for calls in zip(*(member.calls for member in members), strict=False):
        if len({call.choice for call in calls}) > 1:
            break
        shared += 1
    return shared


def _by_execution(table: pl.DataFrame) -> dict[str, list[Row]]:
    parts = table.partition_by("execution_id", as_dict=True, maintain_order=True)
    return {str(key[0]): part.to_dicts() for key, part in parts.items()}


def _member(
    execution: Row, reward: float | None, rows: dict[str, dict[str, list[Row]]], drops: pl.DataFrame
) -> Member:
    own = execution["execution_id"]
    rewards, calls = rows["rewards"].get(own, []), rows["calls"].get(own, [])
    credit = {row["call_id"]: row["advantage"] for row in rows["transitions"].get(own, [])}
    steps = [call for call in sorted(calls, key=lambda call: call["seq"]) if call["kind"] in STEPS]
    ids = [own, *(call["call_id"] for call in calls)]
    left_out = (
        drops.filter(pl.col("id").is_in(ids)).select("stage", "reason").unique().sort(pl.all())
    )
    return Member(
        Reference(Kind.ROLLOUT, execution["rollout_id"]),
        str(execution["attempt"]),
        execution["outcome"] or "",
        reward,
        _values(rewards, None),
        tuple(f"{stage}/{reason}" for stage, reason in left_out.iter_rows()),
        tuple(
            _call(call, credit.get(call["call_id"]), _values(rewards, call["call_id"]))
            for call in steps
        ),
    )


def _values(rewards: Sequence[Row], call: str | None) -> tuple[tuple[str, float], ...]:
    return tuple((row["rule"], row["value"]) for row in rewards if row["call_id"] == call)


def _call(call: Row, advantage: float | None, rewards: tuple[tuple[str, float], ...]) -> MemberCall:
    agent = agent_label(call)
    label = f"{call['kind']} {call['name']}" + (f" in {agent}" if agent else "")
    whole = output_text(call)
    text = visible(whole[:MAX_TEXT]) + ("…" if len(whole) > MAX_TEXT else "")
    digest = sha256(whole.encode("utf-8", "replace")).hexdigest()
    output = shorten(whole, MAX_OUTPUT)
    status, seq = call_status(call), int(call["seq"])
    return MemberCall(label, status, output, advantage, rewards, text, digest, seq)


def compare_task(
    store: Store, recipe: Recipe, recipe_label: str, rows: pl.DataFrame, mode: str, task: str
) -> Group:
    """Return the rollouts of a task under two versions side by side.

    Args:
        rows: the result of `read_scores`.

    Raises:
        NothingToShow: when neither version has a rollout of the task.
    """
    own = rows.filter(task=task)
    if own.is_empty():
        raise NothingToShow(f"Neither version has a rollout of task '{task}'.")
    versions = dict(own.select("rollout", "version").iter_rows())
    members = list[Member]()
    for run, wave in own.select("run", "wave").unique().sort("run", "wave").iter_rows():
        place = GroupReference(run, mode, wave, task)
        found = read_group(store, recipe, recipe_label, place).members
        members += [member for member in found if member.rollout.id in versions]
    order = list(dict.fromkeys(versions.values()))
    members.sort(key=lambda member: order.index(versions[member.rollout.id]))
    labels = tuple(versions[member.rollout.id] for member in members)
    return Group(place, tuple(members), count_shared(members), recipe_label, labels)
