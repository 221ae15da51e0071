"""A rollout as a tree: under each call what it wrote, what it was given, and what became of it.

Every row of the rollout's tables stands in it once: state changes and rewards at their call or at
the attempt, credit and trained tokens at the call, drops at the call or attempt they name.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ltrain_transforms.breaks import SplitReason
from ltrain_transforms.show.rollout import Rollout

Row = dict[str, Any]
FIRST = SplitReason.FIRST.value
"""A reason that goes without saying."""


@dataclass(frozen=True, slots=True)
class Given:
    """One reward."""

    rule: str
    value: float
    source: str
    evidence: str
    """The call or span that made it so, in words."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What of a call is in a row for the trainer."""

    tokens: int
    row: int
    """The row's number in the rollout, from 1."""
    sample_id: str
    begins: str
    """Why the row begins with this call, in words; empty where it does not."""


@dataclass(slots=True)
class Step:
    call: Row
    depth: int
    offset: float
    """Seconds from the attempt's start."""
    seconds: float
    wrote: list[Row] = field(default_factory=list)
    rewards: list[Given] = field(default_factory=list)
    credit: Row | None = None
    """Its row of `transitions`."""
    trained: list[Trained] = field(default_factory=list)
    drops: list[Row] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"#{self.call['seq']} {self.call['name']}"


@dataclass(slots=True)
class Attempt:
    execution: Row
    outcome: float | None
    """What the whole attempt is worth, or None where nobody said."""
    group: list[float]
    """The outcomes of its group."""
    inputs: list[Row]
    """State that no call of it wrote."""
    rewards: list[Given]
    """Those of the whole attempt."""
    steps: list[Step]
    """Depth first; those of one parent in their order."""
    owners: dict[str, Step]
    """The step that each span describes."""
    drops: list[Row] = field(default_factory=list)
    """Of the attempt itself."""


@dataclass(frozen=True, slots=True)
class Tree:
    rollout: str
    judged_by: str
    attempts: list[Attempt]
    drops: list[Row]
    """Of spans that are in no call."""
    data: dict[str, Any] = field(repr=False)

    @property
    def title(self) -> str:
        return f"rollout {self.rollout}"


def tree(found: Rollout) -> Tree:
    """Arrange a rollout's tables."""
    attempts = [
        _attempt(execution, found)
        for execution in found.tables["executions"].sort("attempt").to_dicts()
    ]
    drops = found.tables["drops"].sort("stage", "reason", "id").to_dicts()
    rest = [row for row in drops if not any(_placed(row, one) for one in attempts)]
    return Tree(found.id, found.recipe, attempts, rest, found.data)


def _attempt(execution: Row, found: Rollout) -> Attempt:
    own = {
        name: frame.filter(pl.col("execution_id") == execution["execution_id"]).to_dicts()
        for name, frame in found.tables.items()
        if name != "drops"
    }
    steps = list(_nested(own["calls"], execution["start"] or 0))
    by_call = {step.call["call_id"]: step for step in steps}
    inputs = [row for row in own["states"] if row["written_by"] not in by_call]
    for row in own["states"]:
        if row["written_by"] in by_call:
            by_call[row["written_by"]].wrote.append(row)
    owners = _owners(steps)
    whole = [_given(row, owners) for row in own["rewards"] if row["call_id"] not in by_call]
    for row in own["rewards"]:
        if row["call_id"] in by_call:
            by_call[row["call_id"]].rewards.append(_given(row, owners))
    for row in own["transitions"]:
        by_call[row["call_id"]].credit = row
    for number, sample in enumerate(own["samples"], 1):
        _train(sample, number, by_call)
    is_own = pl.col("execution_id") == execution["execution_id"]
    worth = found.group.filter(is_own)["reward"].to_list()
    peers = found.group["reward"].to_list() if worth else []
    return Attempt(execution, worth[0] if worth else None, peers, inputs, whole, steps, owners)


def _nested(calls: Sequence[Row], began: int) -> Iterator[Step]:
    """Go through the calls depth first; a call whose parents go round in a circle is a root."""
    calls = sorted(calls, key=lambda call: int(call["seq"]))
    known = {call["call_id"] for call in calls}
    below: dict[str | None, list[Row]] = defaultdict(list)
    for call in calls:
        below[call["parent_id"] if call["parent_id"] in known else None].append(call)
    seen: set[str] = set()
    for root in [*below[None], *calls]:
        waiting = [(root, 0)]
        while waiting:
            call, depth = waiting.pop()
            if call["call_id"] in seen:
                continue
            seen.add(call["call_id"])
            yield _step(call, depth, began)
            waiting += [(child, depth + 1) for child in reversed(below[call["call_id"]])]


def _step(call: Row, depth: int, began: int) -> Step:
    return Step(call, depth, (call["start"] - began) / 1e9, (call["end"] - call["start"]) / 1e9)


def _owners(steps: Sequence[Step]) -> dict[str, Step]:
    """Give the call that each span describes."""
    return {
        span: step
        for step in steps
        for span in (step.call["call_id"], *(step.call["source_spans"] or ()))
    }


def _given(row: Row, owners: Mapping[str, Step]) -> Given:
    step = owners.get(row["evidence"])
    evidence = step.label if step is not None else f"span {row['evidence']}"
    return Given(row["rule"], row["value"], row["source"], evidence)


def _train(sample: Row, number: int, calls: Mapping[str, Step]) -> None:
    """Note at each call of a row how many of its tokens are trained."""
    ends = [*sample["call_offsets"][1:], len(sample["response_mask"])]
    spoken = zip(sample["transition_ids"], sample["call_offsets"], ends, strict=True)
    begins = _begins(sample, calls)
    for call, begin, end in spoken:
        tokens = sum(sample["response_mask"][begin:end])
        calls[call].trained.append(Trained(tokens, number, sample["sample_id"], begins))
        begins = ""


def _begins(sample: Row, calls: Mapping[str, Step]) -> str:
    """Say why a row begins where it does, and from where on its tokens differ."""
    other = calls.get(sample["differs_from"])
    if sample["begins"] == FIRST:
        return ""
    if other is None:
        return f"the row begins here: {sample['begins']}"
    where = f"prompt token {sample['differs_at']:,} differs from {other.label}"
    return f"the row begins here: {sample['begins']}, {where}"


def _placed(drop: Row, attempt: Attempt) -> bool:
    """Put a drop to the attempt or the call that it names, if it names one of these."""
    if drop["id"] == attempt.execution["execution_id"]:
        attempt.drops.append(drop)
        return True
    step = attempt.owners.get(drop["id"].split(":")[0])
    if step is not None:
        step.drops.append(drop)
    return step is not None
