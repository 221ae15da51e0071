"""Estimators on literal numbers, computed by hand, and the algebraic properties that must hold."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrain_transforms.estimators.frames import MEMBERS, STEPS, OutcomeSettings, StepSettings
from ltrain_transforms.estimators.registry import ESTIMATORS, STEP_ESTIMATORS

Rows = list[dict[str, Any]]


def members(*rows: dict[str, Any]) -> pl.DataFrame:
    filled = []
    for number, row in enumerate(rows):
        defaults = {"group": 0, "track": 0, "end": number, "calls": 1, "tokens": 1.0}
        filled.append({**defaults, **row})
    peers = [sum(row["group"] == other["group"] for other in filled) for row in filled]
    components = sorted({name for row in rows for name in row if name.startswith("reward:")})
    schema = {**MEMBERS, **dict.fromkeys(components, pl.Float64())}
    rows_ = [{**row, "peers": count} for row, count in zip(filled, peers, strict=True)]
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows_], schema)


def outcome(name: str, *rows: dict[str, Any], **settings: Any) -> list[float | None]:
    return ESTIMATORS[name].function(members(*rows), OutcomeSettings(**settings)).to_list()


def rewards(*values: float) -> Rows:
    return [{"reward": value} for value in values]


def test_max_rl_divides_by_the_mean() -> None:
    assert outcome("max_rl", *rewards(1, 0, 0, 0)) == pytest.approx([3.0, -1.0, -1.0, -1.0])
    assert outcome("max_rl", *rewards(-1, 1)) == [0.0, 0.0], "a mean of 0 is no baseline"


def test_lightning_counts_an_execution_once_per_call() -> None:
    # returns 1, 0, 0, 0 over four transitions: mean 1/4, deviation 1/2
    advantages = outcome("lightning", {"reward": 1.0, "calls": 1}, {"reward": 0.0, "calls": 3})
    assert advantages == pytest.approx([1.5, -0.5], abs=1e-5)
    assert outcome("grpo", *rewards(1, 0)) == pytest.approx([0.7071058, -0.7071058])
    idle = outcome("lightning", {"reward": 1.0, "calls": 1}, {"reward": 0.0, "calls": 0})
    assert idle == [0.0, 0.0], "one transition has no deviation"


def test_opo_weights_by_length_and_falls_back_to_the_mean() -> None:
    advantages = outcome("opo", {"reward": 1.0, "tokens": 30.0}, {"reward": 0.0, "tokens": 10.0})
    assert advantages == pytest.approx([0.25, -0.75])
    silent = outcome("opo", {"reward": 1.0, "tokens": 0.0}, {"reward": 0.0, "tokens": 0.0})
    assert silent == [0.5, -0.5]


def test_grpo_passk_is_nonzero_only_for_the_best() -> None:
    advantages = outcome("grpo_passk", *rewards(1.0, 0.5, 0.0))
    assert advantages == pytest.approx([1.0, 0.0, 0.0], abs=1e-5)
    assert outcome("grpo_passk", *rewards(1, 1, 0)) == [0.0, 0.0, 0.0]


def test_gdpo_scales_each_component() -> None:
    rows: Rows = [
        {"reward": 10.0, "reward:big": 10.0, "reward:small": 0.0},
        {"reward": 0.1, "reward:big": 0.0, "reward:small": 0.1},
    ]
    weighed = outcome("gdpo", *rows, weights={"reward:big": 1.0, "reward:small": 3.0})
    assert weighed == pytest.approx([-0.7071068, 0.7071068], abs=1e-5)


def test_running_uses_only_earlier_executions() -> None:
    rows: Rows = [
        {"reward": 1.0, "end": 30},
        {"reward": 0.0, "end": 10},
        {"reward": 1.0, "end": 20},
        {"reward": 5.0, "end": 15, "track": 1},
    ]
    assert outcome("running", *rows) == [0.5, None, 1.0, None]
    later = [*rows, {"reward": 9.0, "end": 40}]
    assert outcome("running", *later)[:4] == [0.5, None, 1.0, None]


def test_rae_has_a_mean_for_each_agent_that_begins_at_zero() -> None:
    first, second = (
        [{"reward": r, "track": 0} for r in (1.0, 1.0, 0.0)],
        [{"reward": -1.0, "track": 1}],
    )
    # baselines of the first: 0, 0.5, 0.75
    assert outcome("rae", *first, *second, decay=0.5) == pytest.approx([1.0, 0.5, -0.75, -1.0])


@pytest.mark.parametrize(
    "name", sorted(set(ESTIMATORS) - {"running", "rae", "gae", "reinforce_pp"})
)
def test_a_member_alone_has_no_advantage_and_changes_no_other(name: str) -> None:
    two = [{"reward": 1.0, "reward:a": 1.0}, {"reward": 0.0, "reward:a": 0.0}]
    with_one = outcome(name, *two, {"reward": 7.0, "reward:a": 7.0, "group": 1})
    assert with_one[2] is None
    assert with_one[:2] == outcome(name, *two)
    assert with_one[0] is not None and with_one[0] > 0.1


def test_reinforce_pp_compares_groups_of_one_with_the_batch() -> None:
    rows: Rows = [{"reward": r, "group": group} for group, r in enumerate((1.0, 0.0, 1.0, 0.0))]
    # over four tokens the mean is 1/2 and the variance 1/3
    assert outcome("reinforce_pp", *rows) == pytest.approx([0.8660254, -0.8660254] * 2)
    assert outcome("reinforce_pp", *rewards(1.0)) == [None], "a batch of one has no peer"


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"gae"}))
def test_the_record_says_whether_groups_of_one_are_compared(name: str) -> None:
    rows: Rows = [{"reward": r, "reward:a": r, "group": g} for g, r in enumerate((1.0, 0.0, 0.5))]
    compared = [value for value in outcome(name, *rows) if value is not None]
    assert bool(compared) == ESTIMATORS[name].fits_singles


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"running", "rae", "gae"}))
def test_a_group_of_equal_returns_has_exactly_zero(name: str) -> None:
    third = [{"reward": 0.1 + 0.2, "reward:a": 0.3}, {"reward": 0.3, "reward:a": 0.3}]
    assert outcome(name, *third) == pytest.approx([0.0, 0.0], abs=1e-7)


def test_gae_is_zero() -> None:
    assert outcome("gae", *rewards(1, 0)) == [0.0, 0.0]


GROUPS = st.lists(
    st.lists(
        st.tuples(st.integers(-8, 8), st.integers(1, 5), st.integers(1, 90)), min_size=2, max_size=6
    ),
    min_size=1,
    max_size=4,
)


@given(GROUPS)
def test_advantages_of_a_group_sum_to_zero(groups: list[list[tuple[int, int, int]]]) -> None:
    rows: Rows = [
        {"group": group, "reward": reward / 8, "calls": calls, "tokens": float(tokens)}
        for group, executions in enumerate(groups)
        for reward, calls, tokens in executions
    ]
    frame = members(*rows)
    weights = {"lightning": "calls", "opo": "tokens"}
    for name in ("grpo", "dr_grpo", "rloo", "max_rl", "lightning", "opo"):
        weight = pl.col(weights[name]) if name in weights else pl.lit(1.0)
        estimated = frame.with_columns(a=ESTIMATORS[name].function(frame, OutcomeSettings()))
        sums = estimated.group_by("group").agg((pl.col("a") * weight).sum())["a"]
        assert sums.to_list() == pytest.approx([0.0] * len(groups), abs=1e-6), name
    for name in ("reinforce_pp", "reinforce_pp_baseline"):
        white = ESTIMATORS[name].function(frame, OutcomeSettings())
        assert (white * frame["tokens"]).sum() == pytest.approx(0.0, abs=1e-6)
        whitened = pl.select(w=white, n=frame["tokens"])
        square = (pl.col("w").pow(2) * pl.col("n")).sum()
        variance = whitened.select(square / (pl.col("n").sum() - 1)).item()
        # the 1e-8 that verl adds to a variance weighs where that is small itself: 1e-5 at the least
        assert variance == pytest.approx(1.0, abs=5e-3) or white.abs().max() == 0.0


@given(GROUPS, st.randoms(use_true_random=False))
def test_the_order_of_rollouts_changes_no_advantage(
    groups: list[list[tuple[int, int, int]]], random: Any
) -> None:
    rows: Rows = [
        {
            "group": g,
            "track": g,
            "end": n,
            "reward": reward / 8,
            "calls": calls,
            "tokens": float(tokens),
        }
        for g, executions in enumerate(groups)
        for n, (reward, calls, tokens) in enumerate(executions)
    ]
    order = random.sample(range(len(rows)), len(rows))
    for name in set(ESTIMATORS) - {"gdpo"}:
        straight = outcome(name, *rows)
        shuffled = outcome(name, *(rows[place] for place in order))
        assert shuffled == pytest.approx([straight[place] for place in order], abs=1e-9), name


def steps(*rows: dict[str, Any]) -> pl.DataFrame:
    defaults = {
        "group": 0,
        "policy": 0,
        "place": 0,
        "turn_index": 0,
        "reward": 0.0,
        "outcome": 0.0,
        "returns": 0.0,
    }
    filled = [{**defaults, **row} for row in rows]
    return pl.DataFrame([{name: row.get(name) for name in STEPS} for row in filled], STEPS)


def step(name: str, *rows: dict[str, Any], **settings: Any) -> list[float]:
    return STEP_ESTIMATORS[name].function(steps(*rows), StepSettings(**settings)).to_list()


def test_gigpo_compares_returns_in_one_state() -> None:
    rows: Rows = [
        {"execution": 0, "anchor": 1, "returns": 0.5},
        {"execution": 0, "anchor": 2, "returns": 1.0},
        {"execution": 1, "anchor": 1, "returns": 0.0},
        {"execution": 1, "anchor": None, "returns": 9.0},
        {"execution": 2, "anchor": None, "returns": 3.0},
    ]
    assert step("gigpo", *rows) == [0.25, 0.0, -0.25, 0.0, 0.0]
    scaled = step("gigpo", *rows, scale="std")
    assert scaled == pytest.approx([0.7071048, 0.0, -0.7071048, 0.0, 0.0], abs=1e-5)


def test_hgpo_weights_a_longer_shared_history_more() -> None:
    paths = (((1, 5), 1.0), ((1, 5), 0.0), ((2, 5), 0.0))
    rows: Rows = [
        {"execution": number, "anchor": anchor, "returns": outcome}
        for number, (anchors, outcome) in enumerate(paths)
        for anchor in anchors
    ]
    first, second, third = 2 / 3, -1 / 3, -1 / 3  # all three in state 5
    expected = [0.5, (first + 2 * 0.5) / 3, -0.5, (second - 2 * 0.5) / 3, 0.0, third]
    assert step("hgpo", *rows, history=1) == pytest.approx(expected)
    assert step("hgpo", *rows, history=0) == pytest.approx(step("gigpo", *rows))
    flat = [0.5, (first + 0.5) / 2, -0.5, (second - 0.5) / 2, 0.0, third]
    assert step("hgpo", *rows, history=1, power=0.0) == pytest.approx(flat)


def test_a_history_does_not_reach_into_another_execution() -> None:
    rows: Rows = [
        {"execution": 0, "anchor": 1, "returns": 1.0},
        {"execution": 1, "anchor": 2, "returns": 0.0},
        {"execution": 2, "anchor": 1, "returns": 0.0},
        {"execution": 3, "anchor": 2, "returns": 0.0},
    ]
    assert step("hgpo", *rows, history=3) == [0.5, 0.0, -0.5, 0.0]


def test_turn_level_compares_the_rewards_of_the_turn() -> None:
    rows: Rows = [
        {"execution": 0, "turn_index": 0, "reward": 1.0, "returns": 5.0},
        {"execution": 0, "turn_index": 1, "reward": 0.0},
        {"execution": 1, "turn_index": 0, "reward": 0.0},
        {"execution": 1, "turn_index": 0, "place": 1, "reward": 7.0},
    ]
    assert step("turn_level", *rows) == [0.5, 0.0, -0.5, 0.0]


def test_graph_values_pass_through_shared_states() -> None:
    paths = (((1, 2), 1.0), ((1, 3), 0.0), ((1, 2), 0.0))
    rows: Rows = [
        {"execution": number, "anchor": anchor, "outcome": outcome if last else 0.0}
        for number, (anchors, outcome) in enumerate(paths)
        for last, anchor in enumerate(anchors)
    ]
    # V(2) = 1/2, V(3) = 0, V(1) = 1/3
    expected = [1 / 2 - 1 / 3, 1 / 2, -1 / 3, 0.0, 1 / 2 - 1 / 3, -1 / 2]
    assert step("graph", *rows, gamma=1.0) == pytest.approx(expected)


def test_graph_values_converge_on_cycles() -> None:
    rows: Rows = [{"execution": 0, "anchor": 1, "outcome": one} for one in (0.0, 0.0, 1.0)]
    value = 1 / (3 - 2 * 0.9)  # V = (2 gamma V + 1) / 3
    expected = [-0.1 * value, -0.1 * value, 1 - value]
    assert step("graph", *rows, gamma=0.9) == pytest.approx(expected, abs=1e-6)
    nowhere: Rows = [{"execution": 0, "anchor": None, "outcome": one} for one in (0.0, 1.0)]
    assert step("graph", *nowhere) == [0.0, 0.0]


@pytest.mark.parametrize("name", STEP_ESTIMATORS)
def test_without_steps_there_are_no_advantages(name: str) -> None:
    assert step(name) == []


@pytest.mark.parametrize("name", ESTIMATORS)
def test_without_members_there_are_no_advantages(name: str) -> None:
    assert outcome(name) == []
