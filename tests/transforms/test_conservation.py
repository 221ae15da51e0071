"""Nothing is left out in silence: every id is in the lineage of an output or in drops, once."""

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.otlp import insert_otlp
from tests.property_examples import examples

from ltrain_collector.store import Store
from ltrain_transforms.datasets import build
from ltrain_transforms.recipe import Recipe

CALL = st.fixed_dictionaries(
    {
        "node": st.sampled_from(["write", "rewrite", "judge"]),
        "ids": st.booleans(),
        "failed_tool": st.none() | st.booleans(),
        "prompt": st.lists(st.integers(0, 3), min_size=1, max_size=8),
        "gateway": st.sampled_from(
            [{}, {}, {}, {"ltrain.constrained": True}, {"gen_ai.request.temperature": 0.0}]
        ),
    }
)
ATTEMPT = st.fixed_dictionaries(
    {
        "calls": st.lists(CALL, max_size=3),
        "outcome": st.sampled_from(["ok", "ok", "error", "timeout", "infra", None]),
        "rewards": st.lists(st.sampled_from([0.0, 1.0]), max_size=2),
        "missing": st.sampled_from([0, 0, 0, 1]),
        "stray": st.booleans(),
    }
)
WAVE = st.lists(st.tuples(st.sampled_from(["t1", "t2"]), ATTEMPT), max_size=6)


def play(scene: Any, wave: list[tuple[str, dict[str, Any]]]) -> None:
    samples: Counter[str] = Counter()
    for task, plan in wave:
        samples[task] += 1
        rollout = scene.attempt(task, samples[task])
        rollout.dispatch()
        for call in plan["calls"]:
            rollout.llm(call["node"], call["prompt"], ids=call["ids"], gateway=call["gateway"])
            if call["failed_tool"] is not None:
                rollout.tool(error="boom()" if call["failed_tool"] else "")
        if plan["stray"]:
            rollout.emit("POST", "httpx", {}, named=False)
        for reward in plan["rewards"]:
            rollout.evaluate(reward)
        if plan["outcome"]:
            rollout.close(plan["outcome"], missing=plan["missing"])


@pytest.fixture
def tight(recipe_file: Path) -> Recipe:
    """A recipe that uses every filter."""
    filters = "[filter]\nmax_tokens = 9\nmax_groups = 1\n"
    recipe_file.write_text(recipe_file.read_text() + filters)
    return Recipe.load(recipe_file)


@settings(
    max_examples=examples(25, change=8), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(wave=WAVE)
def test_every_id_is_in_a_lineage_or_in_drops(
    store: Store, tight: Recipe, tmp_path: Path, scene: Any, wave: list[tuple[str, dict[str, Any]]]
) -> None:
    scene.attempts.clear()
    scene.run = f"run-{abs(hash(repr(wave)))}"
    play(scene, wave)
    if not scene.attempts:
        return
    insert_otlp(store, scene.request())
    made = build(store, tight, tmp_path / "out", run=scene.run, replace=True)
    drops = made.table("drops")
    left_out = Counter(drops["id"].to_list())

    executions = made.table("executions")
    assert sorted(executions["execution_id"]) == sorted(a.execution for a in scene.attempts)
    trained = set(made.table("samples")["execution_id"])
    explained = set(drops.filter(pl.col("stage").is_in(["executions", "groups"]))["id"])
    assert not trained & explained

    taken = Counter(made.table("samples")["transition_ids"].explode().drop_nulls().to_list())
    transitions = made.table("transitions")
    for execution, call in transitions.select("execution_id", "call_id").iter_rows():
        reasons = taken[call] + left_out[call] + (execution in explained)
        assert reasons == 1, "once in a row, or once in drops, or its execution is"
    idle = set(drops.filter(pl.col("reason") == "no_calls")["id"])
    assert set(executions["execution_id"]) == set(transitions["execution_id"]) | explained | idle
    assert not idle & (explained | set(transitions["execution_id"]))

    lineage = pl.concat(
        [
            made.table("calls")["source_spans"].explode(),
            executions["source_spans"].explode(),
            made.table("rewards").filter(pl.col("source") == "runner")["evidence"],
            drops.filter(pl.col("stage").is_in(["spans", "rewards"]))["id"],
        ]
    ).drop_nulls()
    evidence = made.table("rewards").filter(pl.col("source") == "rule")["evidence"]
    spans = [span.span for attempt in scene.attempts for span in attempt.spans]
    uncredited = drops.filter(pl.col("reason") == "uncredited")["id"]
    assert set(evidence) | set(uncredited) <= set(spans)
    assert sorted(set(lineage)) == sorted(spans)
