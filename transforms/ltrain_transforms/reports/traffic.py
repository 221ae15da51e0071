"""The report on stored traces, before anybody trains: agents, tools, repetitions, rewards, rules.

It reads all executions of one mode, in batches, and keeps a few columns of each call. The outcome
of an execution is the sum of its evaluations.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument.quantity import quantity
from ltrain_transforms.datasets import ParsedSpans, Progress, ignore_progress
from ltrain_transforms.recipe import CallReward, Policy, Recipe, Reward, SignalReward, Source
from ltrain_transforms.reports.dataset import of_writer
from ltrain_transforms.reports.report import Cell, Facts, Grid, Report
from ltrain_transforms.reports.rules import (
    RulesReport,
    RuleStatistics,
    read_batches,
    report_statistics,
)
from ltrain_transforms.rules import library
from ltrain_transforms.source import SPANS_PER_BATCH, Selection, empty_selection
from ltrain_transforms.tables import lacks_token_ids

REPEATED = 3
"""Equal calls of a tool, with equal arguments, in one execution that are a repetition."""
SHOWN = 20
"""Agents and tools that are listed."""
EVALUATIONS = (
    "SELECT DISTINCT toString(name) AS name, toString(source) AS source FROM otel.evaluations"
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The frames that the report counts."""

    calls: pl.DataFrame
    """A few columns of each call, see `_narrow`."""
    executions: pl.DataFrame
    """`EXECUTIONS`."""
    evaluations: pl.DataFrame
    """`execution_id`, `name`, `source` and `value`."""
    rules: RulesReport
    unread: pl.DataFrame
    """`reason`, `detail` and `count` of spans that look like calls and of what is unreadable."""

    @property
    def outcomes(self) -> pl.DataFrame:
        """`execution_id` and `outcome`, the sum of its evaluations, of judged executions."""
        return self.evaluations.group_by("execution_id").agg(outcome=pl.col("value").sum())


def traffic_report(
    store: Store,
    source: Source,
    *,
    spans_a_batch: int = SPANS_PER_BATCH,
    progress: Progress = ignore_progress,
) -> Report:
    """Return the report on the executions of a source.

    Raises:
        NothingToBuild: when the source selects no execution.
    """
    traffic = _read(store, source, spans_a_batch, progress)
    trainable = _trainable(traffic)
    parts = (
        _summary(traffic),
        Grid("Agents", AGENT_COLUMNS, tuple(_agents(traffic))),
        Grid("Tools", TOOL_COLUMNS, tuple(_tools(traffic.calls))),
        Grid(
            f"Repetitions: a tool with equal arguments {REPEATED} times or more in an execution",
            ("tool", "executions", "calls", "most in one", "an execution"),
            tuple(_repetitions(traffic.calls)),
        ),
        Grid("Rewards", ("name", "source", "executions", "mean"), tuple(_rewards(traffic))),
        Grid(
            "Ready rules",
            ("rule", "reads", "times", "executions", "mean", "correlation with the outcome"),
            tuple(_rules(traffic.rules)),
            "none of them says anything here",
        ),
        Grid(
            "Not read",
            ("reason", "count", "meaning"),
            tuple(_unread(traffic.unread)),
        ),
        Grid("What can be trained", ("by", "count", "of"), tuple(trainable)),
        Facts("Next", tuple(_next(traffic, source))),
    )
    kinds = {"rollout": "rollouts", "session": "sessions", "trace": "traces"}
    title = f"{kinds[source.execution]} of mode {source.mode}"
    data = {
        part.title: [dict(zip(part.columns, row, strict=True)) for row in part.rows]
        if isinstance(part, Grid)
        else dict(part.rows)
        for part in parts
    }
    return Report(title, store.name, parts, data)


def _read(store: Store, source: Source, spans_a_batch: int, progress: Progress) -> Traffic:
    statistics = RuleStatistics(_probe(store, source))
    selection = Selection.of_source(source)
    calls, evaluations, unread = [], [], []
    for spans, newest in read_batches(store, statistics.recipe, selection, spans_a_batch, progress):
        parsed: ParsedSpans = statistics.add(spans, newest)
        calls.append(_narrow(parsed.calls))
        unread.append(parsed.unreadable.group_by("reason", "detail").len("count"))
        evaluations.append(parsed.evaluations.select("execution_id", "name", "source", "value"))
    if not calls or statistics.executions.is_empty():
        raise empty_selection(store, source, selection)
    executions, rules = report_statistics(statistics)
    frames = map(pl.concat, (calls, evaluations, unread))
    narrow, judged, others = frames
    return Traffic(narrow, executions, judged, rules, others)


def _probe(store: Store, source: Source) -> Recipe:
    """Return a recipe with each evaluation of the store, and the ready rules that need no key."""
    found = store.query(EVALUATIONS).sort("source", "name")
    sources = {"runner": "runner", "gateway": "runner", "person": "person"}
    evaluations = [
        {"name": f"{name} ({source})", "evaluation": name, "from": sources.get(source, "agent")}
        for name, source in found.iter_rows()
    ]
    ready = (Reward.model_validate({"use": name}) for name in library.rule_names())
    plain = (
        rule
        for rule in ready
        if isinstance(rule, CallReward | SignalReward)
        and not (rule.potential or rule.schema_ or rule.params)
    )
    rules = [rule.model_copy(update={"gate": None}) for rule in plain]
    rewards = (*map(Reward.model_validate, evaluations), *rules)
    return Recipe(policy=(Policy(name="traffic"),), source=source, reward=rewards)


def _narrow(calls: pl.DataFrame) -> pl.DataFrame:
    """Return what the report reads of calls, without their content."""
    return calls.select(
        "execution_id",
        "kind",
        "name",
        "model",
        "error_type",
        "input_tokens",
        "output_tokens",
        agent=pl.coalesce("node", "agent"),
        failed=pl.col("status") == "error",
        seconds=(pl.col("end") - pl.col("start")) / 1e9,
        arguments=pl.col("arguments").hash(),
        recorded=~lacks_token_ids(),
    )


def _summary(traffic: Traffic) -> Facts:
    calls, executions = traffic.calls, traffic.executions
    llm = calls.filter(kind="llm")
    tokens = (int(llm[name].sum()) for name in ("input_tokens", "output_tokens"))
    models = llm["model"].drop_nulls().value_counts(sort=True)["model"].to_list()
    failed = calls.filter("failed")["execution_id"].n_unique()
    read, written = tokens
    return Facts(
        "Traffic",
        (
            ("executions", f"{executions.height:,}, {failed:,} of them with a failed call"),
            ("sessions", f"{executions['session_id'].drop_nulls().n_unique():,}"),
            ("LLM calls", f"{llm.height:,} of {', '.join(models[:SHOWN]) or 'unnamed models'}"),
            ("tokens", f"{read:,} read, {written:,} written"),
            ("tool calls", f"{calls.filter(kind='tool').height:,}"),
            ("duration", _durations(executions["wall"])),
        ),
    )


def _durations(seconds: pl.Series) -> str:
    median, high = (seconds.drop_nulls().quantile(at, "linear") for at in (0.5, 0.9))
    return "unknown" if median is None else f"median {median:.2f} s, 90 % below {high:.2f} s"


AGENT_COLUMNS = (
    *("agent", "executions", "LLM calls", "tool calls", "failed calls"),
    *("tokens read", "tokens written", "seconds of an LLM call, median"),
)


def _agents(traffic: Traffic) -> Iterator[tuple[Cell, ...]]:
    llm = pl.col("kind") == "llm"
    rows = (
        traffic.calls.filter(pl.col("kind").is_in(["llm", "tool"]))
        .group_by("agent")
        .agg(
            pl.col("execution_id").n_unique().alias("executions"),
            llm.sum().alias("llm"),
            (~llm).sum().alias("tools"),
            pl.col("failed").sum(),
            pl.col("input_tokens").sum(),
            pl.col("output_tokens").sum(),
            pl.col("seconds").filter(llm).median(),
        )
        .sort("llm", "tools", descending=True)
    )
    for agent, *numbers in rows.head(SHOWN).iter_rows():
        yield agent or "without a name", *numbers


TOOL_COLUMNS = (
    *("tool", "executions", "calls", "failed", "share failed"),
    *("seconds, median", "seconds, 95 %", "most frequent error"),
)


def _tools(calls: pl.DataFrame) -> Iterator[tuple[Cell, ...]]:
    error = pl.col("error_type").filter("failed").drop_nulls().mode().sort().first()
    rows = (
        calls.filter(kind="tool")
        .group_by("name")
        .agg(
            pl.col("execution_id").n_unique().alias("executions"),
            pl.len().alias("calls"),
            pl.col("failed").sum(),
            pl.col("failed").mean().alias("share"),
            pl.col("seconds").median().alias("median"),
            pl.col("seconds").quantile(0.95, "linear").alias("high"),
            error.alias("error"),
        )
        .sort("calls", "name", descending=[True, False])
    )
    yield from rows.head(SHOWN).iter_rows()


def _repetitions(calls: pl.DataFrame) -> Iterator[tuple[Cell, ...]]:
    repeated = (
        calls.filter(kind="tool")
        .group_by("execution_id", "name", "arguments")
        .len("times")
        .filter(pl.col("times") >= REPEATED)
        .sort("times", "execution_id", descending=[True, False])
    )
    rows = repeated.group_by("name", maintain_order=True).agg(
        pl.col("execution_id").n_unique().alias("executions"),
        pl.col("times").sum().alias("calls"),
        pl.col("times").max().alias("most"),
        pl.col("execution_id").first().alias("example"),
    )
    yield from rows.head(SHOWN).iter_rows()


def _rewards(traffic: Traffic) -> Iterator[tuple[Cell, ...]]:
    rows = traffic.evaluations.group_by("name", "source").agg(
        pl.col("execution_id").n_unique(), pl.col("value").mean()
    )
    yield from rows.sort("name", "source").iter_rows()


def _rules(report: RulesReport) -> Iterator[tuple[Cell, ...]]:
    fired = (row for row in report.rules if row.fired and row.looks_at != "evaluation")
    for row in sorted(fired, key=lambda row: (-row.executions, row.rule)):
        yield row.rule, row.looks_at, row.fired, row.executions, row.mean, row.correlation


def _unread(rows: pl.DataFrame) -> Iterator[tuple[Cell, ...]]:
    counted = rows.group_by("reason", of_writer()).agg(
        pl.col("count").sum(), pl.col("detail").sort_by("count", "detail").last()
    )
    ordered = counted.sort("count", "reason", "detail", descending=[True, False, False])
    yield from ordered.select("reason", "count", "detail").iter_rows()


def _trainable(traffic: Traffic) -> Iterator[tuple[str, int, str]]:
    """Yield the ways of training, how much of the traffic fits each, and its unit."""
    llm = traffic.calls.filter(kind="llm")
    whole = llm.group_by("execution_id").agg(pl.col("recorded").all())
    judged = whole.join(traffic.outcomes, "execution_id")
    recorded = judged.filter("recorded").height
    yield "reinforcement learning", recorded, "judged executions with token ids"
    yield "supervised fine-tuning", whole.height, "executions with LLM calls"
    tasks = traffic.executions.select("execution_id", "task_key").drop_nulls()
    compared = judged.join(tasks, "execution_id").group_by("task_key")
    differ = compared.agg(pl.col("outcome").n_unique()).filter(pl.col("outcome") > 1)
    yield "preferences (DPO)", differ.height, "tasks with several outcomes"
    yield "tasks for rollouts", tasks["task_key"].n_unique(), "different tasks or first requests"


def _next(traffic: Traffic, source: Source) -> Iterator[tuple[str, str]]:
    """Yield the next commands, the most useful first."""
    ways = {name: count for name, count, _ in _trainable(traffic)}
    judged = traffic.outcomes.height
    if not judged:
        example = traffic.executions["execution_id"][0]
        yield f"ltrain reward {example[:12]} 1", "judge executions; nothing here has a reward yet"
    yield "ltrain init", "write a recipe for these traces"
    if ways["reinforcement learning"]:
        yield "ltrain run", "train on them by reinforcement learning"
    elif judged:
        yield "ltrain sft", f"imitate the best of {quantity(judged, 'judged execution')}"
        yield "ltrain run", "let the agent run again on these tasks, with token ids"
    if judged:
        yield "ltrain rules --suggest", "signals that separate good executions from bad ones"
