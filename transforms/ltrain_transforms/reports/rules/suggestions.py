"""Signals of stored traces that separate good outcomes from bad ones, as rules to paste.

Candidates are the ready rules on calls and signals, and what tools have inside: failed spans,
events, error types, status codes, exit codes and log severities. Half of the executions, by task,
ranks them; the other half gives the difference that is reported, so that the best of many
candidates is not the luckiest one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import md5
from math import sqrt
from statistics import fmean, variance

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from ltrain_collector.store import Store
from ltrain_instrument.quantity import quantity
from ltrain_transforms.datasets import Progress, ignore_progress, parse_spans
from ltrain_transforms.recipe import CallReward, EvaluationReward, Recipe, Reward, SignalReward
from ltrain_transforms.reports.rules.tally import read_batches
from ltrain_transforms.rewards import (
    execution_contributions,
    outcomes,
    rule_inputs,
    split_contributions,
)
from ltrain_transforms.rules import library
from ltrain_transforms.source import SPANS_PER_BATCH, Selection, empty_selection
from ltrain_transforms.tables import EXEMPLAR

FEWEST = 4
"""Executions with a signal, and without it, that each half needs."""
MOST = 10
"""Suggestions that are shown."""
PASTED = 3
"""Suggestions whose rules are printed."""
LIMITS = tuple(digit * 10.0**power for power in range(-3, 6) for digit in (1, 3))
"""Values of an exemplar above which it may be a signal."""
Z = 1.96
"""Standard errors on each side of a difference of means, for an interval of 95 %."""
EVERY_COLUMN = SignalReward(
    name="(signals)",
    on="signal",
    when="error_type = '' OR http_status = 0 OR grpc_status = 0 OR db_status = '' OR exit_code = 0 "
    "OR value = 0",
    value="0",
)
"""A rule that names each column that candidates read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A signal, and the outcomes of the half of the executions that did not choose it."""

    rule: str
    """The name of a ready rule; '' for a signal by its predicate."""
    when: str
    """The predicate on signals inside tools; '' for a ready rule."""
    executions: int
    """Judged executions with it, of both halves."""
    with_it: float
    """Mean outcome of the held-out executions with it."""
    without: float
    difference: float
    low: float
    """The lower end of the difference's 95 % interval."""
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0

    @property
    def toml(self) -> str:
        """The rule, for a recipe."""
        if self.rule:
            return f'[[reward]]\nuse = "{self.rule}"\n'
        sign, bound = ("-", "min = -0.3") if self.difference < 0 else ("", "max = 0.3")
        name = re.sub(r"\W+", "-", self.when.split("=")[-1]).strip("-").lower()
        return (
            f'[[reward]]\nname = "{name or "signal"}"\non = "signal"\n'
            f'when = """kind = \'tool\' AND {self.when}"""\nvalue = "{sign}0.1"\n'
            f'credit_to = "requester"\n{bound}\n'
        )


@dataclass(frozen=True, slots=True)
class Suggestions:
    """The best candidates, with the counts of all that was compared."""

    found: list[Suggestion]
    candidates: int
    executions: int
    judged: int


def suggest_rules(
    store: Store,
    recipe: Recipe,
    selection: Selection,
    *,
    spans_a_batch: int = SPANS_PER_BATCH,
    progress: Progress = ignore_progress,
) -> Suggestions:
    """Compare the outcomes of executions with and without each signal, one batch in memory.

    Raises:
        NothingToBuild: when the recipe's source selects no execution.
    """
    probe = _with_candidates(recipe)
    batches = read_batches(store, probe, selection, spans_a_batch, progress)
    pairs = [_of_batch(probe, *batch) for batch in batches]
    if not pairs:
        raise empty_selection(store, recipe.source, selection)
    judged, present = zip(*pairs, strict=True)
    executions, counted = pl.concat(judged), pl.concat(present).unique()
    scored = executions.filter(pl.col("reward").is_not_null())
    found = sorted(_compare(scored, counted), key=lambda each: -each[0])
    candidates = counted.select("rule", "when").n_unique()
    best = [suggestion for _, suggestion in found[:MOST]]
    return Suggestions(best, candidates, executions.height, scored.height)


def _with_candidates(recipe: Recipe) -> Recipe:
    """Return the recipe with its evaluations, and the ready rules that need no key."""
    ready = (Reward.model_validate({"use": name}) for name in library.rule_names())
    rules = [each for each in ready if isinstance(each, CallReward | SignalReward)]
    plain = [each for each in rules if not (each.potential or each.schema_ or each.params)]
    unbounded = (each.model_copy(update={"min": None, "gate": None, "max": None}) for each in plain)
    evaluations = [each for each in recipe.reward if isinstance(each, EvaluationReward)]
    return recipe.model_copy(update={"reward": (*evaluations, *unbounded, EVERY_COLUMN)})


def _of_batch(
    probe: Recipe, spans: pl.DataFrame, newest: int | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the outcome of each execution, and `execution_id`, `rule`, `when` of candidates."""
    parsed = parse_spans(spans, probe, newest)
    inputs = rule_inputs(probe, spans, parsed.calls, parsed.executions, parsed.evaluations)
    contributions = execution_contributions(probe, inputs)
    names = [each.name for each in probe.reward if not isinstance(each, EvaluationReward)]
    of_rules = pl.col("rule").is_in(names)
    rewards, _ = split_contributions(contributions.filter(~of_rules))
    groups = parsed.executions.select("execution_id", half=pl.coalesce("task_key", "execution_id"))
    judged = outcomes(probe, rewards, parsed.executions).join(groups, "execution_id")
    fired = contributions.filter(of_rules & (pl.col("rule") != EVERY_COLUMN.name))
    by_rule = fired.select("execution_id", "rule", when=pl.lit("")).unique()
    half = pl.col("half").map_elements(_half, pl.Int64)
    return judged.with_columns(half=half), pl.concat([by_rule, _predicates(inputs.signals)])


def _half(task: str) -> int:
    return md5(task.encode()).digest()[0] % 2


def _predicates(signals: pl.DataFrame) -> pl.DataFrame:
    """Return the predicates that are true for signals inside tools."""

    def equal(name: str) -> pl.Expr:
        value = pl.col(name).cast(pl.String).str.replace_all("'", "''", literal=True)
        quote = "'" if signals.schema[name] == pl.String else ""
        return pl.format(f"{name} = {quote}{{}}{quote}", value)

    is_log = pl.col("record") == "log"
    choices = (
        pl.when(pl.col("failed"), pl.col("record") == "span").then(
            pl.format("failed AND {}", equal("name"))
        ),
        pl.when(pl.col("record") == "event").then(equal("name")),
        pl.when(pl.col("error_type").is_not_null()).then(equal("error_type")),
        pl.when(pl.col("http_status") >= 400).then(equal("http_status")),
        pl.when(pl.col("grpc_status") > 0).then(equal("grpc_status")),
        pl.when(pl.col("db_status").is_not_null()).then(equal("db_status")),
        pl.when(pl.col("exit_code") != 0).then(equal("exit_code")),
        pl.when(is_log, pl.col("severity") >= 17).then(pl.lit("severity >= 17")),
    )
    measured = pl.col("record") == EXEMPLAR
    above = [
        pl.when(pl.col("value") > limit).then(pl.format("{} AND value > {}", equal("name"), limit))
        for limit in LIMITS
    ]
    failed = pl.format("{} AND {}", equal("name"), equal("error_type"))
    of_metric = [
        pl.format(f"record = '{EXEMPLAR}' AND {{}}", each)
        for each in (pl.when(pl.col("error_type").is_not_null()).then(failed), *above)
    ]
    inside = signals.filter(pl.col("kind") == "tool")
    named = [
        inside.filter(of).select("execution_id", rule=pl.lit(""), when=pl.concat_list(exprs))
        for of, exprs in ((~measured, choices), (measured, of_metric))
    ]
    return pl.concat(named).explode("when").drop_nulls("when").unique()


def _compare(scored: pl.DataFrame, counted: pl.DataFrame) -> Iterator[tuple[float, Suggestion]]:
    """Yield the rank of each candidate, by the first half, and what the second half says.

    Of candidates in the same executions only the first one counts.
    """
    members = (
        counted.group_by("rule", "when").agg(pl.col("execution_id").sort()).sort("when", "rule")
    )
    distinct = members.unique("execution_id", keep="first", maintain_order=True)
    for rule, when, ids in distinct.iter_rows():
        has = pl.col("execution_id").is_in(ids)
        marked = scored.with_columns(has=has)
        halves = (marked.filter(half=half) for half in (0, 1))
        sides = [
            [half.filter(has=has)["reward"].to_list() for has in (True, False)] for half in halves
        ]
        if min(len(side) for half in sides for side in half) < FEWEST:
            continue
        chosen, (difference, error) = (_difference(*half) for half in sides)
        with_it, without = map(fmean, sides[1])
        rank = abs(chosen[0]) - Z * chosen[1]
        yield (
            rank,
            Suggestion(
                rule=str(rule),
                when=str(when),
                executions=int(marked["has"].sum()),
                with_it=with_it,
                without=without,
                difference=difference,
                low=difference - Z * error,
                high=difference + Z * error,
            ),
        )


def _difference(with_it: list[float], without: list[float]) -> tuple[float, float]:
    """Return the difference of the means, and its standard error (Welch)."""
    variances = [variance(side) / len(side) for side in (with_it, without)]
    return fmean(with_it) - fmean(without), sqrt(sum(variances))


def render_suggestions(report: Suggestions) -> RenderableType:
    """Render the candidates by rank, and the rules of the clear ones."""
    head = Text(
        f"{quantity(report.executions, 'execution')}, {report.judged} of them judged; "
        f"{quantity(report.candidates, 'signal')}",
        "bold",
    )
    if not report.found:
        needed = (
            f"No signal can be compared: each half of the judged executions needs {FEWEST} with it "
            f"and {FEWEST} without it."
        )
        return Group(head, Text(needed, "yellow"))
    table = Grid(box=None, padding=(0, 1, 0, 0))
    for name in ("signal inside a tool, or ready rule", "executions", "with", "without"):
        table.add_column(name, justify="left" if name.startswith("signal") else "right")
    table.add_column("difference, held out")
    for each in report.found:
        interval = f"{each.difference:+.2f} [{each.low:+.2f}, {each.high:+.2f}]"
        cells = (each.rule or each.when, str(each.executions))
        numbers = (f"{each.with_it:.2f}", f"{each.without:.2f}", interval)
        table.add_row(*(Text(cell, "" if each.is_clear else "dim") for cell in (*cells, *numbers)))
    clear = [each.toml for each in report.found if each.is_clear][:PASTED]
    advice = "For the recipe:" if clear else "No interval excludes zero: nothing to recommend."
    return Group(head, table, Text(advice), *(Text(text) for text in clear))
