"""A rollout as a tree of calls, each with its state changes, rewards, credit, tokens and drops.

Every row of the tables of the rollout is in the tree once: state changes and rewards at their call
or at the attempt, credit and trained tokens at the call, drops at the call or attempt they name.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ltrain_transforms.calls import CONTAINERS, SLACK, longest_chain_members
from ltrain_transforms.samples import SplitReason
from ltrain_transforms.show.rollout import Extent, RolloutTables
from ltrain_transforms.tables import OTHER_SPAN

Row = dict[str, Any]
FIRST = SplitReason.FIRST.value
"""The reason of the first row of a rollout, which is not shown."""
SAMPLE_COLUMNS = (
    *("sample_id", "transition_ids", "call_offsets", "response_mask"),
    *("begins", "differs_from", "differs_at"),
)
"""The columns of `samples` that a tree reads."""


@dataclass(frozen=True, slots=True)
class RewardEntry:
    """One reward."""

    rule: str
    value: float
    source: str
    evidence: str
    """The call or span that is the reward's evidence, as text for the reader."""
    explanation: str = ""
    """The score of an evaluation with its explanation, or the name of a span; '' if unknown."""


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """The trained tokens of a call in one row of `samples`."""

    tokens: int
    row: int
    """The number of the row in the rollout, from 1."""
    sample_id: str
    begins: str
    """Why the row begins with this call, as text; empty if it does not."""


@dataclass(slots=True)
class TreeCall:
    call: Row
    """Its row of `calls`; `prompt_ids` and `response_ids` are numbers of token ids, or None."""
    depth: int
    offset: float
    """Seconds from the start of the attempt."""
    seconds: float | None
    """Its duration; None where it is unknown."""
    wrote: list[Row] = field(default_factory=list)
    """Its rows of `states`, each with the value `before`."""
    rewards: list[RewardEntry] = field(default_factory=list)
    credit: Row | None = None
    """Its row of `transitions`."""
    trained: list[TrainedTokens] = field(default_factory=list)
    drops: list[Row] = field(default_factory=list)
    is_critical: bool = False
    """Whether it is on the critical path of the attempt."""

    @property
    def times(self) -> str:
        """Its start in the attempt, and its duration where it is known."""
        duration = "" if self.seconds is None else f", {self.seconds:.3f} s"
        return f"{self.offset:+.3f} s{duration}"

    @property
    def label(self) -> str:
        return f"#{self.call['seq']} {self.call['name']}"


@dataclass(slots=True)
class Attempt:
    execution: Row
    outcome: float | None
    """The outcome reward of the attempt; None if it has none."""
    group: list[float]
    """The outcome rewards of its group."""
    inputs: list[Row]
    """Rows of `states` that none of its calls wrote."""
    rewards: list[RewardEntry]
    """Rewards of the whole attempt."""
    steps: list[TreeCall]
    """Calls, depth first; calls of one parent in the order of `seq`."""
    owners: dict[str, TreeCall]
    """The call of each span, by the id of the span."""
    drops: list[Row] = field(default_factory=list)
    """Drops of the attempt itself."""

    def position(self, seq: int) -> int | None:
        """Return the position in `steps` of the call with a `seq`."""
        places = (at for at, step in enumerate(self.steps) if step.call["seq"] == seq)
        return next(places, None)


@dataclass(frozen=True, slots=True)
class RolloutTree:
    rollout: str
    judged_by: str
    attempts: list[Attempt]
    drops: list[Row]
    """Drops of spans that belong to no call."""
    other_spans: int
    """Number of spans that describe no call, such as those of transports."""
    tables: dict[str, pl.DataFrame] = field(repr=False)
    """Its rows of every derived table."""
    kind: str = "rollout"
    """The kind of the id: a rollout, a trace or a session."""
    extent: Extent = Extent.CREDIT
    """How much was read of it."""

    @property
    def data(self) -> dict[str, Any]:
        """The rows of every table, for `--json`."""
        tables = {name: frame.to_dicts() for name, frame in self.tables.items()}
        return {self.kind: self.rollout, **tables}

    @property
    def size(self) -> int:
        """The number of calls."""
        return sum(len(attempt.steps) for attempt in self.attempts)

    @property
    def title(self) -> str:
        return f"{self.kind} {self.rollout}"


def build_tree(rollout: RolloutTables) -> RolloutTree:
    """Arrange the tables of a rollout as a tree."""
    attempts = [
        _attempt(execution, rollout)
        for execution in rollout.tables["executions"].sort("attempt").to_dicts()
    ]
    left_out = rollout.tables["drops"].sort("stage", "reason", "id")
    drops = left_out.filter(pl.col("reason") != OTHER_SPAN).to_dicts()
    others = [row for row in drops if not any(_attach_drop(row, attempt) for attempt in attempts)]
    other_spans = left_out.height - len(drops)
    return RolloutTree(
        rollout.id,
        rollout.recipe,
        attempts,
        others,
        other_spans,
        rollout.tables,
        rollout.kind,
        rollout.extent,
    )


def _attempt(execution: Row, rollout: RolloutTables) -> Attempt:
    is_own = pl.col("execution_id") == execution["execution_id"]
    frames = {
        name: frame.filter(is_own)
        for name, frame in rollout.tables.items()
        if name not in ("drops", "executions")
    }
    # lists of token ids as Python objects would take most of the time and the memory
    frames["calls"] = _count_ids(frames["calls"])
    frames["samples"] = frames["samples"].select(SAMPLE_COLUMNS)
    own = {name: frame.to_dicts() for name, frame in frames.items()}
    steps = list(_depth_first(own["calls"], execution["start"] or 0))
    by_call = {step.call["call_id"]: step for step in steps}
    inputs = [row for row in own["states"] if row["written_by"] not in by_call]
    for row in own["states"]:
        if row["written_by"] in by_call:
            by_call[row["written_by"]].wrote.append(row)
    _link_values(inputs, steps)
    _mark_critical_path(steps)
    owners = _steps_by_span(steps)
    rewards = list[RewardEntry]()
    for row in own["rewards"]:
        step = by_call.get(row["call_id"])
        entry = _reward(row, owners, rollout.explanations.get(row["evidence"], ""))
        (rewards if step is None else step.rewards).append(entry)
    for row in own["transitions"]:
        by_call[row["call_id"]].credit = row
    for number, sample in enumerate(own["samples"], 1):
        _attach_sample(sample, number, by_call)
    outcomes = rollout.group.filter(is_own)["reward"].to_list()
    group = rollout.group["reward"].to_list() if outcomes else []
    outcome = outcomes[0] if outcomes else None
    return Attempt(execution, outcome, group, inputs, rewards, steps, owners)


def _link_values(inputs: Sequence[Row], steps: Sequence[TreeCall]) -> None:
    """Add to each row of `states` the value that its variable had before, or None: `before`."""
    latest = {row["variable"]: row["value"] for row in inputs}
    for step in sorted(steps, key=lambda step: int(step.call["seq"])):
        for row in step.wrote:
            row["before"] = latest.get(row["variable"])
            latest[row["variable"]] = row["value"]


def _mark_critical_path(steps: Sequence[TreeCall]) -> None:
    """Mark the calls of the longest chain, of which `critical_path` of an execution is the length:
    those that do not only enclose others.
    """
    enclosing = {step.call["parent_id"] for step in steps}
    work = [
        step
        for step in steps
        if step.call["kind"] not in CONTAINERS or step.call["call_id"] not in enclosing
    ]
    work.sort(key=lambda step: int(step.call["end"]))
    starts, ends = ([int(step.call[name]) for step in work] for name in ("start", "end"))
    for index in longest_chain_members(starts, ends, SLACK):
        work[index].is_critical = True


def _count_ids(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls with the numbers of their token ids in place of the ids."""
    responses = pl.col("response_token_ids")
    return calls.with_columns(
        prompt_ids=pl.col("prompt_token_ids").list.len(),
        response_ids=responses.list.eval(pl.element().list.len()).list.sum(),
    ).drop("prompt_token_ids", "response_token_ids", "response_logprobs")


def _depth_first(calls: Sequence[Row], start: int) -> Iterator[TreeCall]:
    """Yield the calls depth first; in a cycle of parents, the first call is a root.

    Args:
        start: of the attempt, in nanoseconds.
    """
    calls = sorted(calls, key=lambda call: int(call["seq"]))
    ids = {call["call_id"] for call in calls}
    children: dict[str | None, list[Row]] = defaultdict(list)
    for call in calls:
        children[call["parent_id"] if call["parent_id"] in ids else None].append(call)
    visited: set[str] = set()
    for root in [*children[None], *calls]:
        stack = [(root, 0)]
        while stack:
            call, depth = stack.pop()
            if call["call_id"] in visited:
                continue
            visited.add(call["call_id"])
            yield _step(call, depth, start)
            stack += [(child, depth + 1) for child in reversed(children[call["call_id"]])]


def _step(call: Row, depth: int, start: int) -> TreeCall:
    seconds = None if call["untimed"] else (call["end"] - call["start"]) / 1e9
    return TreeCall(call, depth, (call["start"] - start) / 1e9, seconds)


def _steps_by_span(steps: Sequence[TreeCall]) -> dict[str, TreeCall]:
    """Return the call of each span."""
    return {
        span: step
        for step in steps
        for span in (step.call["call_id"], *(step.call["source_spans"] or ()))
    }


def _reward(row: Row, owners: Mapping[str, TreeCall], explanation: str) -> RewardEntry:
    step = owners.get(row["evidence"])
    evidence = step.label if step is not None else f"span {row['evidence']}"
    return RewardEntry(row["rule"], row["value"], row["source"], evidence, explanation)


def _attach_sample(sample: Row, number: int, calls: Mapping[str, TreeCall]) -> None:
    """Attach the trained tokens of a row of `samples` to its calls."""
    ends = [*sample["call_offsets"][1:], len(sample["response_mask"])]
    parts = zip(sample["transition_ids"], sample["call_offsets"], ends, strict=True)
    begins = _why_row_begins(sample, calls)
    for call, begin, end in parts:
        tokens = sum(sample["response_mask"][begin:end])
        calls[call].trained.append(TrainedTokens(tokens, number, sample["sample_id"], begins))
        begins = ""


def _why_row_begins(sample: Row, calls: Mapping[str, TreeCall]) -> str:
    """Return why a row begins with its first call, and the first token that differs."""
    other = calls.get(sample["differs_from"])
    if sample["begins"] == FIRST:
        return ""
    if other is None:
        return f"the row begins here: {sample['begins']}"
    difference = f"prompt token {sample['differs_at']:,} differs from {other.label}"
    return f"the row begins here: {sample['begins']}, {difference}"


def _attach_drop(drop: Row, attempt: Attempt) -> bool:
    """Attach a drop to the attempt or the call that it names; return whether it names one."""
    if drop["id"] == attempt.execution["execution_id"]:
        attempt.drops.append(drop)
        return True
    step = attempt.owners.get(drop["id"].split(":")[0])
    if step is not None:
        step.drops.append(drop)
    return step is not None
