"""CPU seconds of each estimator, from rewards to advantages, over a million transitions."""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ltrain_transforms.credit import NARROW, chosen, compared, transitions
from ltrain_transforms.estimators import ESTIMATORS, STEP_ESTIMATORS
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.tables import EXECUTIONS, REWARDS

EXECUTIONS_MADE = 100_000
TURNS = 10
"""LLM calls of an execution; each asks a tool, so that there are as many tool calls."""
GROUP = 8
STATES = 5
"""Different states that a turn of a group may be in."""
AT_MOST = 10.0
"""Seconds that an estimator may take."""

Said = dict[str, object]


@dataclass(frozen=True, slots=True)
class Wave:
    """What the rest of the pipeline hands to credit."""

    executions: pl.DataFrame
    calls: pl.DataFrame
    rewards: pl.DataFrame
    outcomes: pl.DataFrame


def wave(executions: int) -> Wave:
    """Make executions of two agents, `planner` and `writer`, by arithmetic on their numbers."""
    number = pl.int_range(executions).alias("n")
    of = pl.select(number).with_columns(
        execution_id=pl.col("n").hash(1).cast(pl.String).str.pad_start(64, "0") + ".1",
        task=(pl.col("n") // GROUP).cast(pl.String),
        outcome=(pl.col("n").hash(2) % 4).cast(pl.Float64) / 4,
    )
    every = of.select("n", "execution_id").join(pl.select(seq=pl.int_range(2 * TURNS)), how="cross")
    key = pl.col("n") * 2 * TURNS + pl.col("seq")
    turn = pl.col("seq") // 2
    is_llm = pl.col("seq") % 2 == 0
    told = every.with_columns(
        call_id=key.hash(3).cast(pl.String).str.pad_start(20, "0"),
        kind=pl.when(is_llm).then(pl.lit("llm")).otherwise(pl.lit("tool")),
        agent=pl.when(turn % 2 == 0).then(pl.lit("planner")).otherwise(pl.lit("writer")),
        state_digest=(turn * STATES + key.hash(4) % STATES).hash(5).cast(pl.String),
        sampled_tokens=20 + key.hash(6) % 200,
        trained_by=pl.when(is_llm).then(pl.lit("policy")),
        value=pl.when(key.hash(7) % 3 == 0).then(-0.2).otherwise(0.1),
        evidence=pl.lit("s"),
    )
    failed = told.filter(is_llm).with_columns(rule=pl.lit("tool-failed"), source=pl.lit("rule"))
    judged = of.with_columns(
        rule=pl.lit("answer"), source=pl.lit("runner"), value="outcome", evidence=pl.lit("s")
    )
    return Wave(
        _filled(EXECUTIONS.schema, of, run_id="bench", mode="train", end=number).with_columns(
            group_id="bench/train/0/" + of["task"], task_id=of["task"]
        ),
        _filled(NARROW, told, policy_version=0),
        pl.concat([_filled(REWARDS.schema, failed), _filled(REWARDS.schema, judged)]),
        of.select("execution_id", reward="outcome"),
    )


def _filled(schema: pl.Schema, frame: pl.DataFrame, **more: object) -> pl.DataFrame:
    """Give the frame the schema's columns, null where nothing says them."""
    said = {
        name: value if isinstance(value, pl.Expr) else pl.lit(value) for name, value in more.items()
    }
    there = {**{name: pl.col(name) for name in frame.columns}, **said}
    return frame.select(
        there.get(name, pl.lit(None)).cast(dtype).alias(name) for name, dtype in schema.items()
    )


def recipes() -> Iterator[tuple[str, Said]]:
    """Name a recipe's `credit` for each estimator."""
    for name in ESTIMATORS:
        among = {"among": "agent"} if name == "rae" else {}
        yield f"outcome {name}", {"outcome": {"estimator": name, **among}}
    for returns in ("uniform", "reward_to_go", "discounted"):
        yield f"process {returns}", {"process": {"returns": returns, "gamma": 0.9}}
    yield "process none", {"process": {"baseline": "none"}}
    for name in STEP_ESTIMATORS:
        yield f"step {name}", {"step": {"estimator": name, "scale": "std"}}
    yield "agents agent", {"outcome": {"among": "agent"}}
    yield "agents parent", {"outcome": {"among": "parent"}, "combine": "rewards"}
    yield "combine rewards", {"combine": "rewards"}


def run(credit: Said, given: Wave) -> tuple[float, float, int]:
    """Credit the wave, and give wall and CPU seconds, and the transitions."""
    recipe = Recipe.model_validate(
        {
            "policy": [{"name": "policy"}],
            "reward": [{"name": "answer", "evaluation": "reward"}],
            "credit": credit,
        }
    )
    began, cpu = time.monotonic(), time.process_time()
    ranked = compared(recipe, given.executions, given.outcomes, given.rewards, given.calls)
    credited = transitions(recipe, ranked, given.calls, given.rewards)
    kept, _ = chosen(recipe, ranked, credited)
    assert len(kept), credit
    return time.monotonic() - began, time.process_time() - cpu, credited.height


def main() -> None:
    given = wave(EXECUTIONS_MADE)
    run({}, given)  # the first run starts threads
    slowest = ("", 0.0)
    for name, credit in recipes():
        seconds, cpu, rows = run(credit, given)
        print(
            json.dumps(
                {"name": name, "transitions": rows, "s": round(seconds, 2), "cpu_s": round(cpu, 2)}
            ),
            flush=True,
        )
        slowest = max(slowest, (name, seconds), key=lambda each: each[1])
    print(
        json.dumps(
            {
                "name": "credit",
                "value": round(slowest[1], 2),
                "unit": f"s of the slowest estimator ({slowest[0]}), 1 M transitions",
                "peer": AT_MOST,
                "ratio": round(AT_MOST / slowest[1], 2),
                "cores": os.cpu_count(),
            }
        )
    )
    sys.exit(slowest[1] > AT_MOST)


if __name__ == "__main__":
    main()
