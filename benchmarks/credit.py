"""Seconds of each estimator on a million transitions, from rewards to advantages."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from ltrain_transforms.credit import (
    credit_inputs,
    outcome_advantages,
    select_groups,
    transitions,
)
from ltrain_transforms.estimators import ESTIMATORS, STEP_ESTIMATORS
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.tables import CALLS, EXECUTIONS, REWARDS

EXECUTIONS_MADE = 100_000
TURNS = 10
"""LLM calls of an execution; with a tool call each and two enclosing agent calls: 22 calls."""
GROUP = 8
STATES = 5
"""Number of different states of one turn in a group."""
MAX_SECONDS = 10.0
"""Limit of an estimator, in CPU seconds, which depend little on the load of the machine."""


@dataclass(frozen=True, slots=True)
class Wave:
    """The input of credit."""

    executions: pl.DataFrame
    calls: pl.DataFrame
    rewards: pl.DataFrame
    outcomes: pl.DataFrame


def make_wave(executions: int) -> Wave:
    """Make executions of a planner agent with a writer agent below it, computed from numbers."""
    n, seq = pl.col("n"), pl.col("seq")
    frame = pl.select(n=pl.int_range(executions)).with_columns(
        execution_id=n.hash(1).cast(pl.String).str.pad_start(64, "0") + ".1",
        task_id=(n // GROUP).cast(pl.String),
        value=(n.hash(2) % 4).cast(pl.Float64) / 4,
        rule=pl.lit("answer"),
        source=pl.lit("runner"),
    )
    calls = frame.select("n", "execution_id").join(
        pl.select(seq=pl.int_range(2 * TURNS + 2)), how="cross"
    )
    key, turn = n * 100 + seq, (seq - 2) // 2
    is_agent, is_llm, writes = seq < 2, seq % 2 == 0, (turn % 2 == 1) & (seq > 1) | (seq == 1)
    call_rows = calls.with_columns(
        call_id=_span(key),
        parent_id=pl.when(seq > 0).then(_span(n * 100 + writes.and_(seq > 1).cast(pl.Int64))),
        kind=pl.when(is_agent)
        .then(pl.lit("agent"))
        .when(is_llm)
        .then(pl.lit("llm"))
        .otherwise(pl.lit("tool")),
        agent=pl.when(writes).then(pl.lit("writer")).otherwise(pl.lit("planner")),
        state_digest=(turn * STATES + key.hash(4) % STATES).hash(5).cast(pl.String),
        output_tokens=20 + key.hash(6) % 200,
        value=pl.when(key.hash(7) % 3 == 0).then(-0.2).otherwise(0.1),
        rule=pl.lit("tool-failed"),
        source=pl.lit("rule"),
    )
    grouped = {"mode": pl.lit("train"), "run_id": pl.lit("bench"), "end": n}
    group_id = pl.lit("bench/train/0/") + pl.col("task_id")
    failed = call_rows.filter(pl.col("kind") == "llm")
    return Wave(
        _table(EXECUTIONS.schema, frame.with_columns(group_id=group_id, **grouped)),
        _table({**CALLS.schema, "state_digest": pl.String()}, call_rows),
        pl.concat([_table(REWARDS.schema, failed), _table(REWARDS.schema, frame)]),
        frame.select("execution_id", reward="value"),
    )


def _span(key: pl.Expr) -> pl.Expr:
    return key.hash(3).cast(pl.String).str.pad_start(20, "0")


def _table(schema: Any, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with the columns of the schema; missing columns are null."""
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in schema.items()
    )


def recipes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a name and the recipe's `credit` for each estimator."""
    for name, estimator in ESTIMATORS.items():
        peers = {"peers": "agent"} if estimator.for_agents else {}
        yield f"outcome {name}", {"outcome": {"estimator": name, **peers}}
    for returns in ("uniform", "reward_to_go", "discounted"):
        yield f"process {returns}", {"process": {"returns": returns, "gamma": 0.9}}
    yield "process without baseline", {"process": {"baseline": "none"}}
    for name in STEP_ESTIMATORS:
        yield f"step {name}", {"step": {"estimator": name, "scale": "std"}}
    yield "among agents", {"outcome": {"peers": "agent"}}
    yield "among sub-agents of a parent", {"outcome": {"peers": "parent"}, "combine": "rewards"}
    yield "combine rewards", {"combine": "rewards"}


def run(credit: dict[str, Any], wave: Wave) -> dict[str, float]:
    """Assign credit to the wave, and return seconds and number of transitions."""
    base = {"policy": [{"name": "policy"}], "reward": [{"name": "answer", "evaluation": "reward"}]}
    recipe = Recipe.model_validate({**base, "credit": credit})
    start, cpu = time.monotonic(), time.process_time()
    calls = credit_inputs(recipe, wave.calls, wave.executions)
    ranked = outcome_advantages(recipe, wave.executions, wave.outcomes, wave.rewards, calls)
    credited = transitions(recipe, ranked, calls, wave.rewards)
    selected, _ = select_groups(recipe, ranked, credited)
    seconds = {"s": time.monotonic() - start, "cpu_s": time.process_time() - cpu}
    if selected.is_empty():
        raise SystemExit(f"{credit} left nothing to train on")
    return {"transitions": credited.height, **{k: round(v, 2) for k, v in seconds.items()}}


def main() -> None:
    wave = make_wave(EXECUTIONS_MADE)
    run({}, wave)  # the first run starts threads
    results = {}
    for name, credit in recipes():
        results[name] = run(credit, wave)
        print(json.dumps({"name": name, **results[name]}), flush=True)
    slowest = max(results, key=lambda name: results[name]["s"])
    print(
        json.dumps(
            {
                "name": "credit",
                "value": results[slowest]["s"],
                "unit": f"s of the slowest ({slowest}) over 1 M transitions, "
                f"at most {MAX_SECONDS:g}",
                "peer": None,
                "ratio": None,
                "cpu_s": max(each["cpu_s"] for each in results.values()),
            }
        )
    )
    sys.exit(any(each["cpu_s"] > MAX_SECONDS for each in results.values()))


if __name__ == "__main__":
    main()
