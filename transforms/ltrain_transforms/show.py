"""What `ltrain show` looks up: one rollout within its group, as the recipe sees it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ltrain_collector.store import Store
from ltrain_transforms.errors import NoSuchRollout
from ltrain_transforms.pipeline import derive
from ltrain_transforms.recipe import DEFAULT, Policy, Recipe, Reward, Source
from ltrain_transforms.source import Selection, read

MOST = 5
"""Rollouts named where a prefix fits several."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Every table's rows of one rollout."""

    rollout: str
    tables: dict[str, pl.DataFrame]
    group: pl.DataFrame
    """The executions of its group that have an outcome: `execution_id`, `reward`."""


def recipe_or_default(path: Path | None) -> Recipe:
    """Load `path`, else ltrain.toml, else a recipe that only hears evaluations named `reward`."""
    if path is not None or DEFAULT.exists():
        recipe = Recipe.load(path or DEFAULT)
        # one group is looked at, which the widest of a wave would say nothing of
        return recipe.model_copy(
            update={"filter": recipe.filter.model_copy(update={"groups": None})}
        )
    heard = Reward.model_validate({"name": "reward", "evaluation": "reward", "from": "any"})
    return Recipe(policy=(Policy(name="policy"),), reward=(heard,))


def rollout(store: Store, recipe: Recipe, prefix: str) -> Shown:
    """Give all tables of the rollout whose id begins with `prefix`.

    Raises:
        NoSuchRollout: when there is none, or more than one.
    """
    found = _found(store, prefix)
    derived = derive(read(store, Source(), _group(found))[0], recipe)
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
    tables["drops"] = _drops(derived.tables["drops"], tables)
    return Shown(str(found["rollout"]), tables, outcomes)


def _found(store: Store, prefix: str) -> dict[str, object]:
    there = store.query(
        "SELECT RolloutId AS rollout, any(toString(RunId)) AS run, "
        "anyIf(toString(Mode), Mode != '') AS mode, max(Wave) AS wave, "
        "anyIf(TaskId, TaskId != '') AS task "
        "FROM otel.spans WHERE startsWith(RolloutId, {prefix:String}) AND RolloutId != '' "
        "GROUP BY RolloutId ORDER BY RolloutId LIMIT 50",
        {"prefix": prefix},
    ).to_dicts()
    exact = [row for row in there if row["rollout"] == prefix]
    if exact or len(there) == 1:
        return dict((exact or there)[0])
    raise NoSuchRollout(_several(store, prefix, [row["rollout"] for row in there]))


def _several(store: Store, prefix: str, names: Sequence[str]) -> str:
    if names:
        few = ", ".join(names[:MOST]) + (", …" if len(names) > MOST else "")
        return f"'{prefix}' begins the ids of {len(names)} rollouts: {few}. Give more of it."
    return (
        f"No rollout '{prefix}' in {store.name}, and no dataset folder of that name. "
        '`ltrain sql "SELECT rollout, task, outcome FROM otel.rollouts"` lists rollouts.'
    )


def _group(found: dict[str, object]) -> Selection:
    if not found["run"] or not found["task"]:
        return Selection(rollout=str(found["rollout"]))
    return Selection(
        run=str(found["run"]),
        mode=str(found["mode"]) if found["mode"] else None,
        wave=int(str(found["wave"])),
        task=str(found["task"]),
    )


def _drops(drops: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Keep the drops of these executions, of their calls, and of evaluations on them."""
    ids = pl.concat(
        [
            tables["executions"]["execution_id"],
            tables["calls"]["call_id"],
            tables["calls"]["source_spans"].explode().drop_nulls(),
        ]
    )
    return drops.filter(pl.col("id").is_in(ids.implode()))
