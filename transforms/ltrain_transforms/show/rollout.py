"""One rollout within its group: its rows of every table that the recipe derives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.datasets import derive, parse_spans
from ltrain_transforms.recipe import DEFAULT, Policy, Recipe, Reward, Source
from ltrain_transforms.rewards import explained_scores
from ltrain_transforms.source import (
    CreditScope,
    Selection,
    list_rollouts,
    read_spans,
    runner_condition,
)
from ltrain_transforms.tables import TABLES, typed_rows
from ltrain_transforms.traces import sender_roles


class Extent(StrEnum):
    """How much is read of a rollout, trace or session."""

    FIRST = "first"
    """The calls in its first spans."""
    CALLS = "calls"
    """All calls, without rewards and credit."""
    CREDIT = "credit"
    """With rewards, credit and drops, as a recipe derives them from the whole group."""
    TRAINED = "trained"
    """With rewards, credit and drops, as a dataset has them."""

    @property
    def is_judged(self) -> bool:
        """Whether rewards, credit and drops are read."""
        return self in (Extent.CREDIT, Extent.TRAINED)


@dataclass(frozen=True, slots=True)
class RolloutPlace:
    """A rollout in the store, and its place in a run; '' and 0 stand for what no span names."""

    rollout: str
    run: str
    mode: str
    wave: int
    task: str


@dataclass(frozen=True, slots=True)
class RolloutTables:
    id: str
    tables: dict[str, pl.DataFrame]
    group: pl.DataFrame
    """`execution_id`, `reward`: the executions of its group that have an outcome."""
    recipe: str
    """A label of the recipe, for the reader."""
    kind: str = "rollout"
    """The kind of the id: a rollout, a trace or a session."""
    explanations: Mapping[str, str] = field(default_factory=dict)
    """Text for the reader on the evidence of rewards, by its id: see `explain_evidence`."""
    extent: Extent = Extent.CREDIT


def recipe_file(path: Path | None) -> Path | None:
    """Return `path`, else ltrain.toml if it exists, else None."""
    return path or (DEFAULT if DEFAULT.exists() else None)


def recipe_of_group(path: Path | None) -> tuple[Recipe, str]:
    """Return the recipe of `recipe_or_default` for the rollouts of one group.

    The limit of groups is over a whole wave, so it has none.

    Raises:
        BadRecipe: when the file is not a valid recipe.
    """
    recipe, label = recipe_or_default(path)
    every = recipe.filter.model_copy(update={"max_groups": None})
    return recipe.model_copy(update={"filter": every}), label


def recipe_or_default(path: Path | None) -> tuple[Recipe, str]:
    """Load `path`, else ltrain.toml, else a recipe that only reads evaluations named `reward`.

    Returns:
        The recipe, and a label of it for the reader.

    Raises:
        BadRecipe: when the file is not a valid recipe.
    """
    if (file := recipe_file(path)) is not None:
        return Recipe.load(file), str(file)
    reward = Reward.model_validate({"name": "reward", "evaluation": "reward", "from": "any"})
    return Recipe(policy=(Policy(name="policy"),), reward=(reward,)), "evaluations named 'reward'"


def candidates(store: Store, prefix: str, trust: Sequence[str] = ()) -> list[RolloutPlace]:
    """Return at most 50 rollouts whose ids start with `prefix`, or only the one with that id.

    Run, mode, wave and task come from the spans of the runner, if there are any.

    Args:
        trust: the recipe's `source.trust`.
    """
    runner_first = runner_condition(sender_roles.trusted_senders(trust))
    found = store.query(
        f"SELECT RolloutId AS rollout, argMax(toString(RunId), {runner_first}) AS run, "
        f"argMax(toString(Mode), ({runner_first}, Mode != '')) AS mode, "
        f"argMax(Wave, ({runner_first}, Wave)) AS wave, "
        f"argMax(TaskId, ({runner_first}, TaskId != '')) AS task "
        "FROM otel.spans WHERE startsWith(RolloutId, {prefix:String}) AND RolloutId != '' "
        "GROUP BY RolloutId ORDER BY RolloutId LIMIT 50",
        {"prefix": prefix},
    )
    rows = typed_rows(RolloutPlace, found)
    return [row for row in rows if row.rollout == prefix] or rows


def parsed_tables(
    spans: pl.DataFrame, recipe: Recipe, rollout: str | None
) -> dict[str, pl.DataFrame]:
    """Return the tables of what `SPANS` record; those that a recipe decides are empty.

    Args:
        rollout: keep the executions of this rollout only.
    """
    parsed = parse_spans(spans, recipe)
    found = {"calls": parsed.calls, "executions": parsed.executions, "states": parsed.states}
    if rollout is not None:
        found["executions"] = parsed.executions.filter(pl.col("rollout_id") == rollout)
    return {table.name: found.get(table.name, table.empty()) for table in TABLES}


def read_rollout(
    store: Store,
    recipe: Recipe,
    recipe_label: str,
    place: RolloutPlace,
    group: Selection | None = None,
) -> RolloutTables:
    """Read all tables of a rollout.

    Args:
        group: the result of `select_group`, if it is known.
    """
    source = recipe.source.without_selection()
    group = group or select_group(store, source, place)
    spans, unresolved = read_spans(store, source, group, metrics=recipe.metrics)
    derived = derive(spans, recipe, CreditScope((place.mode,)))
    executions = derived.tables["executions"]
    own = executions.filter(pl.col("rollout_id") == place.rollout)
    groups = own["group_id"].drop_nulls()
    peers = executions.filter(pl.col("group_id").is_in(groups.implode()))
    outcomes = derived.outcomes.filter(
        pl.col("execution_id").is_in(peers["execution_id"].implode())
    )
    ids = own["execution_id"]
    own_spans = spans.filter(pl.col("execution_id").is_in(ids.implode()))["span_id"]
    tables = own_tables(derived.tables, ids, own_spans, unresolved)
    explanations = explain_evidence(spans, tables)
    return RolloutTables(place.rollout, tables, outcomes, recipe_label, explanations=explanations)


def explain_evidence(spans: pl.DataFrame, tables: Mapping[str, pl.DataFrame]) -> dict[str, str]:
    """Return text for the reader on the evidence of rewards.

    That is score and explanation of an evaluation, and the name of a span that is not a call's.
    """
    of_calls = tables["calls"]["source_spans"].explode().drop_nulls()
    of_rules = tables["rewards"].filter(pl.col("source") == "rule")["evidence"]
    named = spans.filter(
        pl.col("span_id").is_in(of_rules.implode()), ~pl.col("span_id").is_in(of_calls.implode())
    ).select("span_id", pl.concat_str("name", "message", separator=": ", ignore_nulls=True))
    scores = {
        evidence: f"score {score.value}: {score.explanation}"
        for evidence, score in explained_scores(spans).items()
    }
    return dict(named.iter_rows()) | scores


def select_group(store: Store, source: Source, place: RolloutPlace) -> Selection:
    """Select the group of a rollout, or the rollout alone if its run or task is not known."""
    if not place.run or not place.task:
        return Selection(rollouts=(place.rollout,))
    group = Selection(run=place.run, mode=place.mode or None, wave=place.wave, task=place.task)
    return Selection(run=place.run, rollouts=list_rollouts(store, source, group))


def own_tables(
    derived: Mapping[str, pl.DataFrame],
    executions: pl.Series,
    spans: pl.Series,
    unresolved: pl.DataFrame | None = None,
) -> dict[str, pl.DataFrame]:
    """Return the rows of every table that belong to the executions with these ids.

    Args:
        spans: the ids of their spans.
        unresolved: the `DROPS` of spans without an execution, if the table lacks them.
    """
    is_own = pl.col("execution_id").is_in(executions.implode())
    tables = {name: frame.filter(is_own) for name, frame in derived.items() if name != "drops"}
    drops = derived["drops"] if unresolved is None else pl.concat([derived["drops"], unresolved])
    return {**tables, "drops": _own_drops(drops, tables, spans)}


def _own_drops(
    drops: pl.DataFrame, tables: dict[str, pl.DataFrame], spans: pl.Series
) -> pl.DataFrame:
    """Keep the drops of the executions in `tables`, of their calls and of their spans."""
    ids = pl.concat([tables["executions"]["execution_id"], tables["calls"]["call_id"], spans])
    span = pl.col("id").str.split(":").list.first()
    return drops.filter(pl.any_horizontal(key.is_in(ids.implode()) for key in (pl.col("id"), span)))
