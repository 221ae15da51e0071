"""Contributions of rules over calls: potentials telescope, bounds hold, every loss has a reason."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rewards import (
    RuleInputs,
    read_evaluations,
    rewards,
    rule_inputs,
    rules_of,
)
from ltrain_transforms.rewards.rule_contributions import sql_inputs
from ltrain_transforms.tables import CALLS, EVALUATIONS, EXECUTIONS, SPANS

HEAD: dict[str, Any] = {"policy": [{"name": "sql"}]}


def recipe(*rules: dict[str, Any], **more: Any) -> Recipe:
    return Recipe.model_validate({**HEAD, "reward": rules, **more})


def calls(*rows: dict[str, Any]) -> pl.DataFrame:
    """Return calls in order; by default `ok` tools of `e` that the last LLM call requested."""
    filled: list[dict[str, Any]] = []
    last_llm: dict[str, str] = {}
    for seq, row in enumerate(rows):
        execution, kind = row.get("execution_id", "e"), row.get("kind", "tool")
        call = f"{execution}-{seq}"
        last_llm |= {execution: call} if kind == "llm" else {}
        defaults = {
            "execution_id": execution,
            "call_id": call,
            "seq": seq,
            "kind": kind,
            "status": "ok",
            "start": seq,
            "end": seq,
            "requested_by": last_llm.get(execution) if kind == "tool" else None,
        }
        filled.append({**defaults, **row})
    columns = {name: [row.get(name) for row in filled] for name in CALLS.schema}
    return pl.DataFrame(columns, CALLS.schema)


def rule_of(**keys: Any) -> dict[str, Any]:
    return {"name": "r", "on": "tool", "value": "1", **keys}


def inputs_of(recipe: Recipe, calls: pl.DataFrame) -> RuleInputs:
    return rule_inputs(recipe, SPANS.empty(), calls, EXECUTIONS.empty(), EVALUATIONS.empty())


def contributions_of(recipe: Recipe, of: pl.DataFrame) -> pl.DataFrame:
    """Return the contributions of a recipe's only rule."""
    (rule,) = rules_of(recipe)
    return rule.contribute(inputs_of(recipe, of))


PHI = rule_of(
    value="TRY_CAST(phi AS DOUBLE)",
    let={"phi": "result:$.phi"},
    credit_to="requester",
    potential=True,
)
STEP = st.tuples(st.sampled_from(["llm", "tool", "tool", "node"]), st.integers(-8, 8))
EPISODE = st.lists(STEP, max_size=12).map(lambda steps: [("llm", 0), *steps])


def played(steps: list[tuple[str, int]], execution: str = "e") -> list[dict[str, Any]]:
    return [
        {"kind": kind, "execution_id": execution, "result": f'{{"phi": {phi}}}'}
        for kind, phi in steps
    ]


@given(steps=EPISODE, start=st.integers(-3, 3), end=st.integers(-3, 3))
def test_the_differences_of_a_potential_sum_to_its_end_points(
    steps: list[tuple[str, int]], start: int, end: int
) -> None:
    rule = recipe({**PHI, "initial_potential": start, "final_potential": end})
    contributions = contributions_of(rule, calls(*played(steps)))
    tool_calls = sum(kind == "tool" for kind, _ in steps)
    assert (
        contributions["reason"].null_count()
        == contributions.height
        == (tool_calls + 1 if tool_calls else 0)
    )
    assert contributions["value"].sum() == (end - start if tool_calls else 0)


@given(steps=EPISODE, start=st.integers(-3, 3), end=st.integers(-3, 3))
def test_a_potential_telescopes_with_the_discount_of_the_returns(
    steps: list[tuple[str, int]], start: int, end: int
) -> None:
    discounted = {"process": {"returns": "discounted", "gamma": 0.5}}
    rule = recipe({**PHI, "initial_potential": start, "final_potential": end}, credit=discounted)
    trace = calls(*played(steps))
    contributions = contributions_of(rule, trace)
    llm = trace.filter(kind="llm")["call_id"].to_list()
    turn = {call: number for number, call in enumerate(llm, 1)}
    total = sum(
        0.5 ** turn[call] * value
        for call, value in contributions.select("call_id", "value").iter_rows()
    )
    if contributions.height:
        first, last = min(turn[call] for call in contributions["call_id"]), len(llm)
        assert total == pytest.approx(0.5 ** (last + 1) * end - 0.5**first * start)


@given(steps=EPISODE, at=st.integers(0, 12))
def test_the_rest_of_a_potential_depends_on_the_state_alone(
    steps: list[tuple[str, int]], at: int
) -> None:
    """Ng's theorem for the process advantage: the return from a call on is -Phi(state)."""
    trace = calls(*played(steps))
    contributions = contributions_of(recipe(PHI), trace).join(
        trace.select(call_id="call_id", at="seq"), "call_id", maintain_order="left"
    )
    asker = trace.filter(pl.col("kind") == "llm")["seq"].to_list()
    begin = [seq for seq in asker if seq <= at][-1]
    before = [phi for kind, phi in steps[:begin] if kind == "tool"]
    later = contributions.filter(pl.col("at") >= begin)["value"].sum()
    assert later == -(before[-1] if before else 0)


def test_a_potential_by_hand() -> None:
    trace = calls(*played([("llm", 0), ("tool", 2), ("llm", 0), ("tool", 5), ("llm", 0)]))
    contributions = contributions_of(recipe({**PHI, "weight": 10.0}), trace)
    assert contributions.select("call_id", "value", "evidence").rows() == [
        ("e-0", 20.0, "e-1"),
        ("e-2", 30.0, "e-3"),
        ("e-4", -50.0, "e-3"),
    ]


def test_a_value_that_is_no_number_has_a_reason() -> None:
    numbers = ("1", "0", "1e-200", "-1e-200", "null", "1")
    rows = [{"result": f'{{"n": {number}}}', "seq": at} for at, number in enumerate(numbers)]
    rule = rule_of(value="1.0 / TRY_CAST(n AS DOUBLE)", let={"n": "result:$.n"})
    contributions = contributions_of(recipe(rule), calls(*rows))
    reasons = [None, *["infinite_value"] * 3, "null_value", None]
    assert contributions["reason"].to_list() == reasons
    assert contributions.filter(pl.col("reason").is_null())["value"].to_list() == [1.0, 1.0]


def test_text_that_is_no_number_is_null_in_its_row_only() -> None:
    rule = rule_of(value="CAST(result AS DOUBLE)")
    rows = [{"result": text, "seq": at} for at, text in enumerate(("1", "much", "3"))]
    contributions = contributions_of(recipe(rule), calls(*rows))
    assert sorted(contributions.select("value", "reason").rows(), key=str) == [
        (1.0, None),
        (3.0, None),
        (None, "null_value"),
    ]


VALUES = st.lists(st.tuples(st.sampled_from("ef"), st.integers(-9, 9)), max_size=12)


@given(values=VALUES, low=st.integers(-9, 0), high=st.integers(0, 9))
def test_bounds_hold_for_every_prefix(values: list[tuple[str, int]], low: int, high: int) -> None:
    rows = [{"execution_id": name, "result": str(value)} for name, value in values]
    rule = rule_of(value="TRY_CAST(result AS DOUBLE)", min=low, max=high)
    contributions = contributions_of(recipe(rule), calls(*rows))
    for name in "ef":
        own = contributions.filter(execution_id=name)["value"].cum_sum()
        wanted = pl.Series([v for n, v in values if n == name], dtype=pl.Float64).cum_sum()
        assert own.to_list() == wanted.clip(low, high).to_list()


EVERY_KIND = recipe(
    PHI,
    rule_of(name="b", value="gap + repeat", max=2.0, credit_to="previous"),
    {"use": "result-used"},
    {"use": "format-regex"},
    {"use": "language-mixing"},
)


@settings(max_examples=12)
@given(
    steps=st.lists(st.tuples(st.sampled_from("efg"), STEP), max_size=14),
    cut=st.sets(st.sampled_from("efg")),
    order=st.randoms(use_true_random=False),
)
def test_batches_and_order_change_no_contribution(
    steps: list[tuple[str, tuple[str, int]]], cut: set[str], order: Any
) -> None:
    """All kinds of rules at once, with the executions cut into two batches."""
    rows = [
        {**row, "execution_id": name, "output": f'[{{"role": "assistant", "parts": []}}, {phi}]'}
        for name, (kind, phi) in steps
        for row in played([(kind, phi)])
    ]
    trace = calls(*rows)
    whole = rewards(EVERY_KIND, inputs_of(EVERY_KIND, trace))
    mixed = list(range(trace.height))
    order.shuffle(mixed)
    inside = pl.col("execution_id").is_in(sorted(cut))
    parts = [
        rewards(EVERY_KIND, inputs_of(EVERY_KIND, trace[mixed].filter(part)))
        for part in (inside, ~inside)
    ]
    for at in (0, 1):
        together = pl.concat([part[at] for part in parts])
        assert sorted(together.rows(), key=repr) == sorted(whole[at].rows(), key=repr)


def test_a_value_depends_on_its_own_row_alone() -> None:
    """7 / 10 is 0.7 or 0.7000000000000001 in polars, by how many rows are divided together."""
    rule = recipe(rule_of(value="TRY_CAST(result AS DOUBLE) / 10", when="seq / 10 < 0.7"))
    one = {"result": "7", "seq": 7}
    alone = contributions_of(rule, calls(one))
    several = contributions_of(rule, calls(one, one, one))
    in_parts = contributions_of(rule, pl.concat([calls(one), calls(one, one)], rechunk=False))
    assert alone["value"].to_list() * 3 == several["value"].to_list() == in_parts["value"].to_list()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gate": "reward > 0"}, "would break the sum"),
        ({"min": -1.0}, "bound would break the sum"),
        ({"credit_to": "rollout"}, "credits calls"),
        ({"on": "rollout", "let": {}, "value": "wall"}, "a potential is computed on calls"),
    ],
)
def test_an_invalid_potential_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        recipe({**PHI, **change})


def test_parameters_are_bound_as_values_not_sql() -> None:
    rule = rule_of(when="result = :text", params={"text": "it's '' :x"})
    contributions = contributions_of(
        recipe(rule), calls({"result": "it's '' :x"}, {"result": "other"})
    )
    assert contributions["evidence"].to_list() == ["e-0"]


def test_a_rule_reads_no_column_that_it_does_not_name(tmp_path: Path) -> None:
    """Tokens and texts are not copied."""
    inputs = sql_inputs(recipe(rule_of(when="status = 'error'")), calls({"result": "long"}))
    assert set(inputs.columns).isdisjoint({"input", "output", "result", "prompt_token_ids"})
    assert read_evaluations(SPANS.empty(), CALLS.empty())[0].is_empty()
