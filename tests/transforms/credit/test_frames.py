"""Credit on narrow frames: fusion, returns, agents, policies, and values that are not finite."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from tests.property_examples import examples
from tests.transforms.waves import Called, Run, Wave, recipe

from ltrain_transforms.credit.inputs import credit_inputs
from ltrain_transforms.credit.ordering import integer_codes
from ltrain_transforms.credit.returns import discounted_returns
from ltrain_transforms.estimators import ESTIMATORS, STEP_ESTIMATORS

NAN, INF = float("nan"), float("inf")


def tool(reward: float = 0.0) -> Called:
    return Called(kind="tool", reward=reward)


def centred(**outcome: Any) -> dict[str, Any]:
    return {"outcome": {"estimator": "dr_grpo", **outcome}}


def test_the_three_advantages_are_fused_with_their_weights() -> None:
    first = Run(1.0, (Called(reward=0.5, state="s"), Called(state="a")))
    second = Run(0.0, (Called(state="s"), Called(state="b")))
    credit = centred() | {"process": {"weight": 2.0}, "step": {"weight": 4.0, "gamma": 0.5}}
    credited = Wave.of(first, second).credited(recipe(credit))
    assert credited.column("outcome_advantage") == {
        "e0.0": 0.5,
        "e0.1": 0.5,
        "e1.0": -0.5,
        "e1.1": -0.5,
    }
    assert credited.column("process_advantage") == {
        "e0.0": 0.25,
        "e0.1": 0.0,
        "e1.0": -0.25,
        "e1.1": 0.0,
    }
    # in state s: 0.5 + 0.5 x 1 against 0
    assert credited.column("step_advantage") == {
        "e0.0": 0.5,
        "e0.1": 0.0,
        "e1.0": -0.5,
        "e1.1": 0.0,
    }
    assert credited.column("advantage") == {"e0.0": 3.0, "e0.1": 0.5, "e1.0": -3.0, "e1.1": -0.5}


def test_combine_rewards_compares_the_sum() -> None:
    wave = Wave.of(Run(1.0, (Called(reward=0.5), tool(0.25))), Run(0.0))
    credited = wave.credited(recipe(centred() | {"combine": "rewards"}))
    assert credited.column("outcome_advantage") == {"e0.0": 0.875, "e1.0": -0.875}
    assert credited.column("process_advantage") == {"e0.0": 0.0, "e1.0": 0.0}
    assert credited.column("advantage") == {"e0.0": 0.875, "e1.0": -0.875}
    assert credited.column("returns") == {"e0.0": 0.75, "e1.0": 0.0}


def test_gae_has_no_advantage_and_carries_all_rewards() -> None:
    calls = (tool(9.0), Called(reward=0.1), tool(0.2), Called(agent="judge"), Called(reward=0.3))
    wave = Wave.of(Run(1.0, calls), Run(1.0, task=None))
    policy = [{"name": "sql", "agents": ["writer"]}]
    credited = wave.credited(recipe({"outcome": {"estimator": "gae"}}, policy=policy))
    rewards = credited.column("reward")
    # rewards before the first call belong to no step of the policy
    assert rewards == {"e0.1": pytest.approx(0.3), "e0.4": pytest.approx(1.3), "e1.0": 1.0}
    assert set(credited.column("advantage").values()) == {0.0}
    assert (credited.selected, credited.drops) == (["e0", "e1"], {})


def test_running_baselines_train_traffic_without_groups() -> None:
    runs = [Run(value, task=None) for value in (1.0, 0.0, 1.0)]
    credited = Wave.of(*runs).credited(recipe({"outcome": {"estimator": "running"}}))
    assert credited.column("advantage") == {"e0.0": None, "e1.0": -1.0, "e2.0": 0.5}
    assert (credited.selected, credited.drops) == (["e1", "e2"], {"e0": "alone"})
    grouped = Wave.of(*runs).credited(recipe())
    assert set(grouped.drops.values()) == {"alone"}


def test_outcomes_that_differ_by_rounding_have_no_spread() -> None:
    runs = [Run(0.1 + 0.2), Run(0.3)]
    credited = Wave.of(*runs).credited(recipe())
    assert credited.column("advantage") == {"e0.0": 0.0, "e1.0": 0.0}
    assert credited.drops == {"e0": "no_spread", "e1": "no_spread"}


@pytest.mark.parametrize("fault", [NAN, INF])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_nan_and_infinite_rewards_reach_no_advantage(estimator: str, fault: float) -> None:
    sound = [Run(value, (Called(tokens=3),)) for value in (1.0, 0.0, 0.5)]
    peers = {"peers": "agent"} if estimator == "rae" else {}
    credit_recipe = recipe({"outcome": {"estimator": estimator, **peers}})
    alone = Wave.of(*sound).credited(credit_recipe)
    for faulty in (Run(fault), Run(1.0, (Called(reward=fault),))):
        credited = Wave.of(*sound, faulty).credited(credit_recipe)
        assert credited.drops["e3"] == "not_finite"
        assert credited.column("advantage") == alone.column("advantage")


def test_an_agent_is_compared_with_the_same_agent_of_the_group() -> None:
    both = (Called("planner"), Called("writer"))
    wave = Wave.of(Run(1.0, both), Run(0.0, (Called("planner"),)), Run(0.0, both))
    credited = wave.credited(recipe(centred(peers="agent")))
    third = pytest.approx(-1 / 3)
    assert credited.column("outcome_advantage") == {
        "e0.0": pytest.approx(2 / 3), "e0.1": 0.5, "e1.0": third, "e2.0": third, "e2.1": -0.5,
    }  # fmt: skip


def test_an_agent_without_peers_has_zero_and_is_no_drop() -> None:
    wave = Wave.of(Run(1.0, (Called("planner"), Called("judge"))), Run(0.0, (Called("planner"),)))
    credited = wave.credited(recipe(centred(peers="agent")))
    assert credited.column("outcome_advantage") == {"e0.0": 0.5, "e0.1": 0.0, "e1.0": -0.5}
    assert credited.drops == {}
    strangers = Wave.of(Run(1.0, (Called("a"),)), Run(0.0, (Called("b"),)))
    assert set(strangers.credited(recipe(centred(peers="agent"))).drops.values()) == {"alone"}


def test_sub_agents_are_compared_under_their_parent() -> None:
    def agent(name: str, parent: int | None = None, reward: float = 0.0) -> Called:
        return Called(name, kind="agent", parent=parent, reward=reward)

    proposal = (
        agent("proposer"),
        Called("proposer", parent=0),
        agent("solver", 0, 1.0),
        Called("solver", parent=2),
        agent("solver", 0),
        Called("solver", parent=4),
    )
    lone = (agent("proposer"), Called("proposer", parent=0, reward=0.5), agent("solver", 0, 4.0))
    one = (*lone, Called("solver", parent=2))
    wave = Wave.of(Run(0.0, proposal), Run(0.0, one), Run(0.0, one))
    credited = wave.credited(recipe(centred(peers="parent") | {"combine": "rewards"}))
    outcome = credited.column("outcome_advantage")
    assert (outcome["e0.3"], outcome["e0.5"]) == (0.5, -0.5)
    # proposers over the group: 0, 0.5 and 0.5; solvers without siblings: 4 and 4
    assert outcome["e0.1"] == pytest.approx(-1 / 3)
    assert (outcome["e1.1"], outcome["e1.3"]) == (pytest.approx(1 / 6), 0.0)


def test_a_reward_on_an_enclosing_call_takes_effect_when_it_ends() -> None:
    def at(start: int, end: int, **more: Any) -> Called:
        return Called(more={"start": start, "end": end}, **more)

    calls = (
        at(0, 1),
        at(2, 9, agent="helper", kind="agent", reward=1.0),
        at(3, 4, agent="helper"),
        at(5, 6, agent="helper", kind="tool"),
        at(9, 10),
    )
    credit_recipe = recipe({"process": {"baseline": "none"}})
    credited = Wave.of(Run(1.0, calls), Run(0.0)).credited(credit_recipe)
    returns = {"e0.0": 1.0, "e0.2": 1.0, "e0.4": 0.0, "e1.0": 0.0}
    assert credited.column("returns") == returns
    assert set(credited.column("reward").values()) == {0.0}, "another call has the reward"
    critic = Wave.of(Run(1.0, calls)).credited(recipe({"outcome": {"estimator": "gae"}}))
    assert critic.column("reward") == {"e0.0": 0.0, "e0.2": 1.0, "e0.4": 1.0}


def test_a_cycle_of_parents_encloses_nothing() -> None:
    circle = (Called(kind="node", parent=1), Called(kind="node", parent=0), Called(parent=0))
    credit_recipe = recipe(centred(peers="parent") | {"combine": "rewards"})
    credited = Wave.of(Run(1.0, circle), Run(0.0, circle)).credited(credit_recipe)
    assert credited.column("outcome_advantage") == {"e0.2": 0.5, "e1.2": -0.5}


def test_a_call_belongs_to_the_first_policy_that_selects_it() -> None:
    calls = (
        Called("planner"),
        Called("writer"),
        Called("judge"),
        Called("planner", more={"policy": "other"}),
        Called("planner", more={"policy": "second"}),
        tool(),
    )
    policy = [{"name": "first", "agents": ["planner"]}, {"name": "second"}]
    credited = Wave.of(Run(1.0, calls), Run(0.0, calls)).credited(recipe(policy=policy))
    policies = {
        call: name for call, name in credited.column("policy").items() if call.startswith("e0")
    }
    assert policies == {"e0.0": "first", "e0.1": "second", "e0.2": "second", "e0.4": "second"}


def test_a_frozen_policy_keeps_its_calls_out_of_the_training() -> None:
    calls = (Called("planner"), Called("writer"))
    policy = [{"name": "first", "agents": ["planner"], "frozen": True}, {"name": "second"}]
    credited = Wave.of(Run(1.0, calls), Run(0.0, calls)).credited(recipe(policy=policy))
    assert set(credited.column("policy").values()) == {"second"}
    assert {call.split(".")[1] for call in credited.column("policy")} == {"1"}


@pytest.mark.parametrize(
    ("policy", "trained"),
    [
        ({"where": "model LIKE 'small%' AND status = 'ok'"}, ["e0.0"]),
        ({"where": "model IS NULL"}, ["e0.2"]),
        ({"nodes": ["draft"]}, ["e0.1"]),
        ({"nodes": ["draft"], "agents": ["judge"]}, []),
        ({"modes": ["train"]}, ["e0.0", "e0.1", "e0.2"]),
        ({"modes": ["prod", "val"]}, []),
    ],
)
def test_a_policy_selects_by_node_mode_and_sql(policy: dict[str, Any], trained: list[str]) -> None:
    calls = (
        Called(more={"model": "small-1", "status": "ok"}),
        Called(more={"model": "small-1", "status": "error", "node": "draft"}),
        Called(more={"status": "ok"}),
    )
    credit_recipe = recipe(policy=[{"name": "sql", **policy}])
    credited = Wave.of(Run(1.0, calls), Run(0.0)).credited(credit_recipe)
    assert [call for call in credited.column("policy") if call.startswith("e0")] == trained


CALLS = st.builds(
    Called,
    agent=st.sampled_from(["writer", "planner"]),
    reward=st.integers(-3, 3).map(lambda n: n / 4),
    state=st.sampled_from([None, "a", "b"]),
    kind=st.sampled_from(["llm", "llm", "tool", "agent"]),
    tokens=st.none() | st.integers(1, 9),
)
RUNS = st.builds(
    Run,
    outcome=st.sampled_from([0.0, 0.5, 1.0]),
    calls=st.lists(CALLS, max_size=6).map(tuple),
    task=st.sampled_from(["t", "u", None]),
)
CREDITS = [
    *({"outcome": {"estimator": name}} for name in sorted(set(ESTIMATORS) - {"rae"})),
    *({"step": {"estimator": name}} for name in STEP_ESTIMATORS),
    {"outcome": {"estimator": "rae", "peers": "agent"}},
    {"outcome": {"peers": "parent"}, "combine": "rewards"},
    {"process": {"returns": "discounted", "gamma": 0.9}},
]


@settings(max_examples=examples(60, change=10))
@given(st.lists(RUNS, min_size=1, max_size=6), st.sampled_from(CREDITS), st.randoms())
def test_order_and_batches_change_no_advantage(
    runs: list[Run], credit: dict[str, Any], random: Any
) -> None:
    wave, credit_recipe = Wave.of(*runs), recipe(credit)
    whole = wave.credited(credit_recipe)
    order = random.sample(range(len(runs)), len(runs))
    rank = pl.DataFrame({"execution_id": [f"e{n}" for n in range(len(runs))], "rank": order})

    def shuffled(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.join(rank, "execution_id").sort("rank", maintain_order=True).drop("rank")

    frames = map(shuffled, (wave.executions, wave.calls, wave.rewards, wave.outcomes))
    again = Wave(*frames).credited(credit_recipe)
    by = ["execution_id", "t"]
    assert_frame_equal(whole.transitions.sort(by), again.transitions.sort(by), check_exact=True)
    assert (whole.selected, whole.drops) == (again.selected, again.drops)
    batches = [
        credit_inputs(
            credit_recipe,
            wave.calls.filter(execution_id=name),
            wave.executions.filter(execution_id=name),
        )
        for name in rank["execution_id"]
    ]
    assert_frame_equal(
        pl.concat(batches), credit_inputs(credit_recipe, wave.calls, wave.executions)
    )
    advantage = whole.transitions["advantage"].drop_nulls()
    assert advantage.is_finite().all()
    assert {*whole.selected, *whole.drops} == set(rank["execution_id"])


@given(
    st.lists(
        st.lists(st.tuples(st.booleans(), st.integers(-9, 9)), min_size=1, max_size=9), min_size=1
    ),
    st.sampled_from([0.0, 0.3, 0.9, 1.0]),
)
def test_returns_equal_their_definition(
    executions: list[list[tuple[bool, int]]], gamma: float
) -> None:
    rows: list[tuple[int, int, float]] = []
    for number, calls in enumerate(executions):
        turn = 0
        for is_llm, reward in calls:
            turn += is_llm
            rows.append((number, turn, float(reward)))
    expected = [
        sum(gamma ** (t - turn) * r for n, t, r in rows[place:] if n == number)
        for place, (number, turn, _) in enumerate(rows)
    ]
    frame = pl.DataFrame(rows, ["execution", "turn", "effective_reward"], orient="row")
    assert discounted_returns(frame, gamma).to_list() == pytest.approx(expected, abs=1e-9)


def test_integer_codes_do_not_depend_on_earlier_categories() -> None:
    pl.Series([f"state-{n}" for n in range(1000)]).cast(pl.Categorical)
    agents = pl.DataFrame({"agent": ["new-b", None, "new-a", "new-b"]})
    numbers = agents.select(integer_codes("agent")).to_series()
    assert sorted(numbers.unique()) == [1, 2, 3]
    assert numbers[0] == numbers[3]


def test_a_long_execution_loses_no_precision() -> None:
    frame = pl.DataFrame(
        {"execution": [0] * 5000, "turn": range(5000), "effective_reward": [1.0] * 5000}
    )
    returns = discounted_returns(frame, 0.5)
    assert returns[0] == pytest.approx(2.0)
    assert returns[4998] == pytest.approx(1.5)
