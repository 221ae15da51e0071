"""One rollout within its group, as the recipe sees it: every table's rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms import roles
from ltrain_transforms.pipeline import derive
from ltrain_transforms.recipe import DEFAULT, Policy, Recipe, Reward, Source
from ltrain_transforms.source import Selection, read_spans, runner_condition


@dataclass(frozen=True, slots=True)
class Rollout:
    id: str
    tables: dict[str, pl.DataFrame]
    group: pl.DataFrame
    """The executions of its group that have an outcome: `execution_id`, `reward`."""
    recipe: str
    """By which recipe it is judged, as a person would say it."""

    @property
    def data(self) -> dict[str, Any]:
        """Give every table's rows."""
        tables = {name: frame.to_dicts() for name, frame in self.tables.items()}
        return {"rollout": self.id, **tables}


def recipe_or_default(path: Path | None) -> tuple[Recipe, str]:
    """Load `path`, else ltrain.toml, else a recipe that only hears evaluations named `reward`.

    Raises:
        BadRecipe: when `path`, or an ltrain.toml that is there, is none.
    """
    if path is not None or DEFAULT.exists():
        recipe = Recipe.load(path or DEFAULT)
        # one group is looked at, which the widest of a wave would say nothing of
        every = recipe.filter.model_copy(update={"max_groups": None})
        return recipe.model_copy(update={"filter": every}), str(path or DEFAULT)
    heard = Reward.model_validate({"name": "reward", "evaluation": "reward", "from": "any"})
    return Recipe(policy=(Policy(name="policy"),), reward=(heard,)), "evaluations named 'reward'"


def candidates(store: Store, prefix: str, trust: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return at most 50 rollouts whose ids begin with `prefix`; an exact one alone.

    Run, mode, wave and task are the runner's word, where there is one.

    Args:
        trust: the recipe's `source.trust`.
    """
    ours = runner_condition(roles.trusted_senders(trust))
    there = store.query(
        f"SELECT RolloutId AS rollout, argMax(toString(RunId), {ours}) AS run, "
        f"argMax(toString(Mode), ({ours}, Mode != '')) AS mode, "
        f"argMax(Wave, ({ours}, Wave)) AS wave, "
        f"argMax(TaskId, ({ours}, TaskId != '')) AS task "
        "FROM otel.spans WHERE startsWith(RolloutId, {prefix:String}) AND RolloutId != '' "
        "GROUP BY RolloutId ORDER BY RolloutId LIMIT 50",
        {"prefix": prefix},
    ).to_dicts()
    return [row for row in there if row["rollout"] == prefix] or there


def rollout(store: Store, recipe: Recipe, judged_by: str, found: dict[str, Any]) -> Rollout:
    """Return all tables of a rollout that `candidates` found."""
    spans, unresolved = read_spans(store, Source(trust=recipe.source.trust), _group(found))
    derived = derive(spans, recipe)
    executions = derived.tables["executions"]
    own = executions.filter(pl.col("rollout_id") == found["rollout"])
    ids = own["execution_id"].implode()
    groups = own["group_id"].drop_nulls()
    peers = executions.filter(pl.col("group_id").is_in(groups.implode()))
    outcomes = derived.outcomes.filter(
        pl.col("execution_id").is_in(peers["execution_id"].implode())
    )
    tables = {
        name: frame.filter(pl.col("execution_id").is_in(ids))
        for name, frame in derived.tables.items()
        if name != "drops"
    }
    its_spans = spans.filter(pl.col("execution_id").is_in(ids))["span_id"]
    tables["drops"] = _drops(pl.concat([derived.tables["drops"], unresolved]), tables, its_spans)
    return Rollout(str(found["rollout"]), tables, outcomes, judged_by)


def _group(found: dict[str, Any]) -> Selection:
    if not found["run"] or not found["task"]:
        return Selection(rollout=str(found["rollout"]))
    return Selection(
        run=str(found["run"]),
        mode=str(found["mode"]) if found["mode"] else None,
        wave=int(found["wave"]),
        task=str(found["task"]),
    )


def _drops(drops: pl.DataFrame, tables: dict[str, pl.DataFrame], spans: pl.Series) -> pl.DataFrame:
    """Keep the drops of these executions, of their calls and of their spans."""
    ids = pl.concat([tables["executions"]["execution_id"], tables["calls"]["call_id"], spans])
    span = pl.col("id").str.split(":").list.first()
    return drops.filter(pl.any_horizontal(one.is_in(ids.implode()) for one in (pl.col("id"), span)))
