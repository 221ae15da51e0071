"""Selection of executions: each reason to leave one out, and the reasons a recipe may allow."""

from typing import Any

import polars as pl
import pytest

from ltrain_transforms import policy_lineage
from ltrain_transforms.recipe import Filter, Policy
from ltrain_transforms.source.trained_calls import (
    REASONS,
    CreditScope,
    is_trained,
    select_executions,
    trained_policy,
)
from ltrain_transforms.tables import CALLS, DROPS, EXECUTIONS

CASES: dict[str, dict[str, Any]] = {
    "superseded": {"superseded": True},
    "held_out": {"mode": "val"},
    "infra": {"outcome": "infra"},
    "cancelled": {"outcome": "cancelled"},
    "incomplete": {"complete": False},
    "withheld": {"withheld": True},
    "failed": {"outcome": "timeout"},
    "unrewarded": {"execution_id": "not evaluated"},
}


def execution(**cells: Any) -> dict[str, Any]:
    good = {"execution_id": "e1", "outcome": "ok", "complete": True, "superseded": False}
    return {**dict.fromkeys(EXECUTIONS.schema), **good, **cells}


def counted(rule: Filter, *rows: dict[str, Any]) -> tuple[list[str], pl.DataFrame]:
    frame = pl.DataFrame(rows, EXECUTIONS.schema)
    selected, drops = select_executions(frame, pl.Series(["e1", "e2"]), rule)
    assert (selected.schema, drops.schema) == (EXECUTIONS.schema, DROPS.schema)
    return selected["execution_id"].to_list(), drops


def test_every_reason_has_a_case() -> None:
    # tests/transforms/datasets/test_lineage.py and test_waiting.py
    elsewhere = {*policy_lineage.REASONS, "waiting"}
    assert CASES.keys() == REASONS.keys() - elsewhere


@pytest.mark.parametrize("reason", CASES)
def test_an_execution_left_out_is_a_drop_with_a_sentence(reason: str) -> None:
    bad = execution(**{"execution_id": "e2", **CASES[reason]})
    selected, drops = counted(Filter(failed="drop"), execution(), bad)
    assert selected == ["e1"]
    assert drops.rows() == [("executions", bad["execution_id"], reason, REASONS[reason])]


def test_an_execution_of_a_test_is_left_out_where_validation_is_read() -> None:
    rows = [execution(mode="val"), execution(execution_id="e2", mode="test")]
    frame = pl.DataFrame(rows, EXECUTIONS.schema)
    selected, drops = select_executions(
        frame, frame["execution_id"], Filter(), CreditScope(("val",))
    )
    assert selected["execution_id"].to_list() == ["e1"]
    assert drops.rows() == [("executions", "e2", "held_out", REASONS["held_out"])]


def test_an_execution_without_dispatch_joins_no_dispatched_group() -> None:
    groups = [("g", True), ("g", False), ("h", False), (None, False), (None, True)]
    rows = [
        execution(execution_id=f"e{n}", group_id=group, dispatched=dispatched)
        for n, (group, dispatched) in enumerate(groups)
    ]
    frame = pl.DataFrame(rows, EXECUTIONS.schema)
    selected, drops = select_executions(frame, frame["execution_id"], Filter())
    assert selected["execution_id"].to_list() == ["e0", "e2", "e3", "e4"]
    assert drops["reason"].to_list() == ["incomplete"]


def test_withheld_spans_count_as_failed_unless_failures_are_dropped() -> None:
    bad = execution(execution_id="e2", withheld=True)
    assert counted(Filter(), bad)[0] == ["e2"]
    assert counted(Filter(failed="drop", allow=("incomplete",)), bad)[0] == ["e2"]


@pytest.mark.parametrize("outcome", ["ok", "error", "timeout", None])
def test_the_agents_own_outcomes_count(outcome: str | None) -> None:
    assert counted(Filter(), execution(outcome=outcome))[0] == ["e1"]


@pytest.mark.parametrize("outcome", ["ok", "error", "timeout"])
def test_an_execution_without_evaluation_does_not_count_as_zero(outcome: str) -> None:
    selected, drops = counted(Filter(), execution(outcome=outcome, execution_id="e3"))
    assert (selected, drops["reason"].to_list()) == ([], ["unrewarded"])


def test_the_most_serious_reason_is_given() -> None:
    lost = execution(superseded=True, outcome="infra", complete=False, execution_id="e3")
    assert counted(Filter(), lost)[1]["reason"].to_list() == ["superseded"]


def test_a_recipe_may_allow_incomplete_but_not_infra() -> None:
    rule = Filter(allow=("incomplete",))
    rows = [execution(complete=False), execution(execution_id="e2", outcome="infra")]
    selected, drops = counted(rule, *rows)
    assert (selected, drops["reason"].to_list()) == (["e1"], ["infra"])


def test_a_policy_is_trained_on_other_models_calls_only_if_it_imitates_them() -> None:
    names = ("p", None, "gpt-5", "critic")
    rows = [{**dict.fromkeys(CALLS.schema), "kind": "llm", "policy": name} for name in names]
    frame = pl.DataFrame(rows, CALLS.schema)
    for imitates, expected in (
        ((), [True, True, False, False]),
        (("gpt-5",), [True, True, True, False]),
    ):
        policy = Policy(name="p", imitates=imitates)
        assert frame.select(is_trained(policy)).to_series().to_list() == expected


WHERE = {
    "a cast and a division": ("10 / CAST(output AS DECIMAL(10, 2)) > 1", "0"),
    "a text that is no number": ("CAST(output AS DECIMAL(10, 2)) > 1", "x"),
    "a pattern in the data": ("STRPOS('(5', output) > 0", "("),
    "a negative power": ("POW(input_tokens, LENGTH(output) - 2) >= 1", "x"),
    "a date": ("CAST(output AS DATE) IS NULL OR LENGTH(output) = 2", "x"),
    "no column": ("CAST('5' AS INT) = 5", "x"),
}
"""A predicate, and the output of a call that breaks it."""


@pytest.mark.parametrize(("where", "hostile"), WHERE.values(), ids=WHERE)
def test_where_depends_on_each_call_alone(where: str, hostile: str) -> None:
    outputs = ["5 ", hostile, "5 ", None, hostile]
    rows = [
        {**dict.fromkeys(CALLS.schema), "kind": "llm", "output": output, "input_tokens": 5}
        for output in outputs
    ]
    policy = Policy(name="p", where=where)

    def selected(*indices: int) -> list[bool]:
        frame = pl.DataFrame([rows[index] for index in indices], CALLS.schema)
        named = frame.with_columns(mode=pl.lit("train")).lazy().select(trained_policy([policy]))
        trained = frame.select(is_trained(policy)).to_series().to_list()
        assert [name == "p" for name in named.collect().to_series()] == trained
        return [bool(one) for one in trained]

    assert selected(*range(len(rows))) == [selected(index)[0] for index in range(len(rows))]
