"""Rules over executions and gates, which need all executions of a wave."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.otlp import insert_otlp
from tests.property_examples import examples

from ltrain_collector.store import Store
from ltrain_transforms.datasets import build, derive
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rewards import apply_gates, outcomes
from ltrain_transforms.source import Selection, read_spans
from ltrain_transforms.tables import EXECUTIONS, REWARDS

ANSWER = {"name": "answer", "evaluation": "reward"}


def recipe(*rules: dict[str, Any]) -> Recipe:
    return Recipe.model_validate({"policy": [{"name": "sql"}], "reward": [ANSWER, *rules]})


def executions(*rows: dict[str, Any]) -> pl.DataFrame:
    """Return executions of one group, named in order, `ok` by default."""
    usual = {"group_id": "g", "outcome": "ok", "superseded": False, "wall": 1.0}
    made = [{"execution_id": f"e{at}", **usual, **row} for at, row in enumerate(rows)]
    made = [{"source_spans": [f"close-{row['execution_id']}"], **row} for row in made]
    columns = {name: [row.get(name) for row in made] for name in EXECUTIONS.schema}
    return pl.DataFrame(columns, EXECUTIONS.schema)


def rewards(*rows: tuple[str, str | None, str, float]) -> pl.DataFrame:
    """Return `REWARDS` from execution, call, rule and value."""
    filled = [
        (execution, call, rule, "rule" if call else "runner", value, f"{rule}-of-{call}")
        for execution, call, rule, value in rows
    ]
    return pl.DataFrame(filled, REWARDS.schema, orient="row")


def plain(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    return frame.select("execution_id", "call_id", "rule", "value").rows()


def test_without_rollout_rules_and_gates_nothing_changes() -> None:
    before = rewards(("e0", None, "answer", 1.0), ("e0", "c", "bonus", 0.2))
    counted, drops = apply_gates(recipe(), before, executions({}))
    assert counted.equals(before)
    assert drops.is_empty()


def test_a_rollout_rule_reads_the_statistics_of_its_group() -> None:
    of = executions(
        {"critical_path": 1.0},
        {"critical_path": 3.0},
        {"critical_path": 9.0},
        {"critical_path": 0.1, "superseded": True},
        {"critical_path": 0.1, "outcome": "infra"},
        {"critical_path": 4.0, "group_id": None},
    )
    rule = {"name": "speed", "on": "rollout", "value": "group_critical_path", "weight": 2.0}
    counted, drops = apply_gates(recipe(rule), rewards(), of)
    late = [("e0", 6.0), ("e1", 6.0), ("e2", 6.0), ("e3", 6.0), ("e4", 6.0)]
    assert counted.select("execution_id", "value").rows() == late
    assert counted.select("call_id", "source", "evidence").row(0) == (None, "rule", "close-e0")
    assert drops.select("id", "reason").rows() == [("close-e5", "null_value")]


def test_a_rollout_rule_counts_in_the_outcome_within_its_bounds() -> None:
    rule = {"name": "late", "on": "rollout", "value": "-wall", "min": -2.0}
    of = executions({"wall": 1.5}, {"wall": 60.0})
    before = rewards(("e0", None, "answer", 1.0), ("e1", None, "answer", 1.0))
    counted, _ = apply_gates(recipe(rule), before, of)
    assert outcomes(recipe(rule), counted, of).rows() == [("e0", -0.5), ("e1", -1.0)]


BONUS: dict[str, Any] = {"name": "bonus", "on": "tool", "value": "0.2", "gate": "reward > :most"}
BONUS |= {"params": {"most": 0.5}}


def test_a_gate_removes_rewards_where_it_does_not_hold() -> None:
    before = rewards(
        ("e0", None, "answer", 1.0),
        ("e0", "a", "bonus", 0.2),
        ("e0", "b", "free", 0.1),
        ("e1", None, "answer", 0.0),
        ("e1", "c", "bonus", 0.2),
        ("e1", "d", "free", 0.1),
        ("e2", "e", "bonus", 0.2),
    )
    free = {"name": "free", "on": "tool", "value": "0.1"}
    counted, drops = apply_gates(recipe(BONUS, free), before, executions({}, {}, {}))
    gone = [("e1", "c"), ("e2", "e")]
    pairs = [(execution, call) for execution, call, _, _ in plain(counted)]
    assert pairs == [pair for pair in before.select("execution_id", "call_id").rows()
                     if pair not in gone]  # fmt: skip
    assert drops.select("stage", "id", "reason").rows() == [
        ("rewards", "bonus-of-c", "gated"),
        ("rewards", "bonus-of-e", "gated"),
    ]


def test_no_gate_depends_on_another() -> None:
    """`reward` in a gate is the sum of ungated evaluations, whatever their order in the recipe."""
    style = {"name": "style", "evaluation": "style", "gate": "reward > 0"}
    late = {"name": "late", "on": "rollout", "value": "reward", "gate": "reward > 0"}
    before = rewards(
        ("e0", None, "answer", 0.0),
        ("e0", None, "style", 5.0),
        ("e1", None, "answer", 1.0),
        ("e1", None, "style", 5.0),
    )
    for rules in ((style, late), (late, style)):
        counted, drops = apply_gates(recipe(*rules), before, executions({}, {}))
        assert sorted(plain(counted), key=str) == [
            ("e0", None, "answer", 0.0),
            ("e1", None, "answer", 1.0),
            ("e1", None, "late", 1.0),
            ("e1", None, "style", 5.0),
        ]
        assert drops["reason"].to_list() == ["gated", "gated"]


def test_without_evaluations_the_rules_make_the_outcome() -> None:
    rules = [{"name": "solved", "on": "tool", "value": "1", "credit_to": "rollout"}, BONUS]
    plain_rules = Recipe.model_validate({"policy": [{"name": "sql"}], "reward": rules})
    before = pl.DataFrame(
        [
            ("e0", None, "solved", "rule", 1.0, "a"),
            ("e0", "b", "bonus", "rule", 0.2, "b"),
            ("e1", "c", "bonus", "rule", 0.2, "c"),
        ],
        REWARDS.schema,
        orient="row",
    )
    counted, drops = apply_gates(plain_rules, before, executions({}, {}))
    assert counted["evidence"].to_list() == ["a", "b"]
    assert drops["id"].to_list() == ["c"]


@settings(max_examples=examples(30))
@given(
    walls=st.lists(
        st.tuples(st.sampled_from("gh"), st.sampled_from([0.0, 1.0, 2.0, 4.0]), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    order=st.randoms(use_true_random=False),
)
def test_the_order_of_executions_changes_no_reward(
    walls: list[tuple[str, float, bool]], order: Any
) -> None:
    of = executions(
        *({"group_id": group, "wall": wall, "critical_path": wall} for group, wall, _ in walls)
    )
    before = rewards(
        *((f"e{at}", None, "answer", float(right)) for at, (_, _, right) in enumerate(walls)),
        *((f"e{at}", f"c{at}", "bonus", 0.2) for at in range(len(walls))),
    )
    rules = recipe(BONUS, {"use": "latency"}, {"use": "completion-time"})
    counted, drops = apply_gates(rules, before, of)
    mixed, mixed_rewards = list(range(of.height)), list(range(before.height))
    order.shuffle(mixed)
    order.shuffle(mixed_rewards)
    again = apply_gates(rules, before[mixed_rewards], of[mixed])
    for one, other in zip((counted, drops), again, strict=True):
        assert sorted(one.rows(), key=repr) == sorted(other.rows(), key=repr)
    late = counted.filter(pl.col("rule").is_in(["latency", "completion-time"]))
    assert late["value"].abs().max() is None or late["value"].abs().max() <= 0.1  # type: ignore[operator]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"value": "wal"}, "no column 'wal'. Did you mean 'wall'"),
        ({"gate": "reward >"}, 'gate = "reward >".*line 1, column'),
        ({"gate": "reward"}, "must return true or false"),
        ({"value": "max(wall)"}, "aggregates are refused"),
        ({"credit_to": "last"}, "credit_to 'last' needs an SQL rule over calls"),
    ],
)
def test_an_invalid_rollout_rule_is_refused(change: dict[str, Any], says: str) -> None:
    rule = {"name": "r", "on": "rollout", "value": "wall", **change}
    with pytest.raises(ValueError, match=says):
        recipe(rule)


def test_a_build_in_batches_gives_the_rewards_of_one_in_memory(
    scene: Any, store: Store, recipe_file: Path, tmp_path: Path
) -> None:
    """Rules over the rollout and gates read the whole wave, however it is cut into batches."""
    late = '[[reward]]\nuse = "latency"\n[[reward]]\nuse = "tool-succeeded"\n'
    recipe_file.write_text(recipe_file.read_text() + late)
    loaded = Recipe.load(recipe_file)
    for task in ("t1", "t2"):
        for sample in range(3):
            rollout = scene.attempt(task, sample)
            rollout.llm()
            rollout.clock += sample * 1_000_000_000
            rollout.tool()
            rollout.evaluate(float(sample > 0))
            rollout.close()
    insert_otlp(store, scene.request())
    whole, cut = (
        build(store, loaded, tmp_path / str(size), spans_a_batch=size) for size in (1_000, 10)
    )
    assert whole.id == cut.id
    memory = derive(read_spans(store, loaded.source, Selection(run="demo"))[0], loaded).tables
    for name in ("rewards", "transitions", "drops"):
        rows = sorted(memory[name].rows(), key=repr)
        assert rows == sorted(cut.table(name).rows(), key=repr)
    counted = dict(cut.table("rewards").group_by("rule").len().iter_rows())
    assert counted == {"answer": 6, "latency": 4, "tool-succeeded": 4}
    assert cut.drops.filter(reason="gated").height == 4
