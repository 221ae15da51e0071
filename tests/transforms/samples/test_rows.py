"""Rows from literal tokens: the calls that share one, and its columns."""

import re

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from tests.transforms.talk import Talk, recipe

from ltrain_transforms.tables import SAMPLES


def test_a_continuing_call_joins_the_row_and_tokens_between_are_masked() -> None:
    talk = Talk()
    talk.call((1, 2), (3, 4))
    talk.call((1, 2, 3, 4, 9, 9), (5,), policy_version=1)
    frame, drops = talk.samples()
    assert drops.is_empty()
    assert frame.schema == SAMPLES.schema
    (row,) = frame.to_dicts()
    assert re.fullmatch("[0-9a-f]{32}", row.pop("sample_id"))
    third = pytest.approx(1 / 3)
    assert row.pop("loss_weight") == [third, third, 0.0, 0.0, third]
    assert row == {
        "execution_id": "e1",
        "rollout_id": "rollout-e1",
        "group_id": "g1",
        "policy": "sql",
        "tokens": "sampled",
        "prompt_ids": [1, 2],
        "response_ids": [3, 4, 9, 9, 5],
        "response_mask": [1, 1, 0, 0, 1],
        "rollout_logprobs": [-0.5, -0.5, 0.0, 0.0, -0.5],
        "advantages": [1.0, 1.0, 0.0, 0.0, 2.0],
        "token_rewards": [0.0, 0.0, 0.0, 0.0, -1.0],
        "temperature": 1.0,
        "call_offsets": [0, 4],
        "call_constraints": [None, None],
        "call_versions": [0, 1],
        "call_positions": [0, 1],
        "next_sample_id": None,
        "transition_ids": ["c0", "c1"],
        "begins": "first",
        "differs_from": None,
        "differs_at": None,
    }


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ((1, 2, 9), "it lacks what was sampled"),
        ((1, 2, 3, 8, 9), "one token was rendered differently"),
        ((3, 4), "it begins anew"),
    ],
)
def test_a_prompt_that_does_not_continue_exactly_starts_a_row(
    prompt: tuple[int, ...], why: str
) -> None:
    talk = Talk()
    talk.call((1, 2), (3, 4))
    talk.call(prompt, (5,))
    assert talk.rows() == [["c0"], ["c1"]], why


def test_the_first_of_two_branches_joins_and_the_second_starts_a_row() -> None:
    talk = Talk()
    talk.call((1,), (2,))
    talk.call((1, 2, 7), (3,))
    talk.call((1, 2, 8), (4,))
    assert talk.rows() == [["c0", "c1"], ["c2"]]
    second = talk.samples()[0].to_dicts()[1]
    assert second["prompt_ids"] == [1, 2, 8], "what the root sampled is context here"
    assert (second["response_ids"], second["response_mask"]) == ([4], [1])


def test_two_sub_agents_whose_calls_interleave_make_two_rows() -> None:
    talk = Talk()
    for prompt, response in (((1,), (2,)), ((5,), (6,)), ((1, 2, 3), (4,)), ((5, 6, 7), (8,))):
        talk.call(prompt, response)
    assert talk.rows() == [["c0", "c2"], ["c1", "c3"]]


def test_five_steps_with_a_break_at_the_fourth_make_two_samples() -> None:
    """The example of best-effort interleaving in the docs of prime-rl."""
    talk = Talk()
    context: tuple[int, ...] = (1, 2)
    for step in range(5):
        if step == 3:
            context = (1, 2, 77)
        talk.call(context, (10 + step,))
        context = (*context, 10 + step, 90 + step)
    assert talk.rows() == [["c0", "c1", "c2"], ["c3", "c4"]]
    first, second = talk.samples()[0].to_dicts()
    assert first["response_ids"] == [10, 90, 11, 91, 12]
    assert first["response_mask"] == [1, 0, 1, 0, 1]
    assert (second["prompt_ids"], second["response_ids"]) == ([1, 2, 77], [13, 93, 14])
    assert first["next_sample_id"] == second["sample_id"]


def test_a_conversation_tree_trains_every_answer_once() -> None:
    """AReaL's tree: a root with two children, one of which has two of its own."""
    talk = Talk()
    talk.call((1,), (2,))
    talk.call((1, 2, 3), (4,))
    talk.call((1, 2, 5), (6,))
    talk.call((1, 2, 3, 4, 7), (8,))
    talk.call((1, 2, 3, 4, 9), (10,))
    frame, _ = talk.samples()
    assert frame["transition_ids"].to_list() == [["c0", "c1", "c3"], ["c2"], ["c4"]]
    trained = [
        token
        for row in frame.to_dicts()
        for token, mask in zip(row["response_ids"], row["response_mask"], strict=True)
        if mask
    ]
    assert sorted(trained) == [2, 4, 6, 8, 10]
    assert frame["begins"].to_list() == ["first", "branch", "branch"]


def test_a_compacted_history_starts_a_row_that_later_calls_join() -> None:
    talk = Talk()
    talk.call((1, 2), (3,))
    talk.call((1, 2, 3, 4), (5,))
    talk.call((1, 60, 61), (7,))
    talk.call((1, 60, 61, 7, 8), (9,))
    assert talk.rows() == [["c0", "c1"], ["c2", "c3"]]


def test_a_call_joins_the_longest_context() -> None:
    talk = Talk()
    talk.call((1,), (2,))
    talk.call((1,), (2, 3))
    talk.call((1, 2, 3, 4), (5,))
    assert talk.rows() == [["c0"], ["c1", "c2"]]


def test_of_equal_rows_a_call_joins_the_first() -> None:
    talk = Talk()
    for prompt in ((1,), (1,), (1,), (1, 2, 3), (1, 2, 3)):
        talk.call(prompt, (2,))
    assert talk.rows() == [["c0", "c3"], ["c1", "c4"], ["c2"]]


def test_the_same_answer_sampled_twice_is_two_rows() -> None:
    talk = Talk()
    for _ in range(3):
        talk.call((1, 2), (3,))
    assert talk.rows() == [["c0"], ["c1"], ["c2"]]


@pytest.mark.parametrize(
    "other", [{"temperature": 0.5}, {"policy": "judge"}, {"execution": "e2"}], ids=str
)
def test_another_temperature_policy_or_execution_starts_a_row(other: dict[str, object]) -> None:
    talk = Talk()
    talk.call((1,), (2,))
    talk.call((1, 2, 3), (4,), **other)  # type: ignore[arg-type]
    assert sorted(talk.rows()) == [["c0"], ["c1"]]


def test_a_missing_temperature_is_the_apis_default() -> None:
    talk = Talk()
    talk.call((1,), (2,), temperature=None)
    talk.call((1, 2, 3), (4,), temperature=1.0)
    assert talk.rows() == [["c0", "c1"]]
    assert talk.samples()[0]["temperature"].to_list() == [1.0]


def test_the_next_sample_is_the_next_row_that_begins_after_the_end() -> None:
    talk = Talk()
    talk.call((1,), (2,))
    talk.call((7,), (8,))
    talk.call((1, 2, 3), (4,))
    talk.call((9,), (3,))
    talk.call((1,), (2,), execution="e2")
    frame, _ = talk.samples()
    number = {name: place for place, name in enumerate(frame["sample_id"])}
    after = [number.get(name) for name in frame["next_sample_id"]]
    assert frame["transition_ids"].to_list() == [["c0", "c2"], ["c1"], ["c3"], ["c4"]]
    assert after == [2, 2, None, None]


@pytest.mark.parametrize(
    ("loss_weighting", "expected"),
    [
        ("token", [[1.0, 1.0, 0.0, 1.0], [1.0], [1.0, 1.0]]),
        ("call", [[0.5, 0.5, 0.0, 1.0], [1.0], [0.5, 0.5]]),
        ("rollout", [[0.25, 0.25, 0.0, 0.25], [0.25], [0.5, 0.5]]),
    ],
)
def test_units_of_equal_weight_have_the_same_sum(
    loss_weighting: str, expected: list[list[float]]
) -> None:
    talk = Talk()
    talk.call((1,), (2, 3))
    talk.call((1, 2, 3, 9), (4,))
    talk.call((8,), (5,))
    talk.call((1,), (2, 3), execution="e2")
    frame, _ = talk.samples(recipe(train={"loss_weighting": loss_weighting}))
    assert frame["loss_weight"].to_list() == expected


def test_the_policies_of_one_rollout_are_weighted_separately() -> None:
    talk = Talk()
    talk.call((1,), (2, 3))
    talk.call((8,), (5,), policy="judge")
    frame, _ = talk.samples(recipe(train={"loss_weighting": "rollout"}))
    weights = dict(frame.select("policy", "loss_weight").iter_rows())
    assert weights == {"sql": [0.5, 0.5], "judge": [1.0]}
    assert frame["next_sample_id"].null_count() == 2, "a value goes on within its own policy"


def test_too_long_drops_the_calls_that_do_not_fit_or_the_row() -> None:
    talk = Talk()
    talk.call((1,), (2,))
    talk.call((1, 2, 3), (4,))
    talk.call((1, 2, 3, 4, 5), (6,))
    talk.call((8,), (9,))
    drops = {}
    for what, rows in (("call", [["c0", "c1"], ["c3"]]), ("row", [["c3"]])):
        filters = {"max_tokens": 4, "too_long": what}
        assert talk.rows(filter=filters) == rows
        drops[what] = talk.samples(recipe(filter=filters))[1].select("id", "reason").rows()
    assert drops["call"] == [("c2", "too_long")]
    assert drops["row"] == [(call, "too_long") for call in ("c0", "c1", "c2")]


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=4)
CALL = st.tuples(
    st.sampled_from(["e1", "e2"]),
    st.none() | st.integers(0, 5),
    TOKENS,
    TOKENS,
    st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.0]),
    st.sampled_from(["sql", "sql", "judge"]),
)


def talk_of(plan: list[tuple[str, int | None, list[int], list[int], float, str]]) -> Talk:
    """Return calls, some of which continue an earlier one."""
    talk = Talk()
    for execution, earlier, prompt, response, temperature, policy in plan:
        if earlier is not None and earlier < len(talk.calls):
            before = talk.calls[earlier]
            prompt = [*before["prompt_token_ids"], *before["response_token_ids"][0], *prompt]
        talk.call(prompt, response, execution=execution, temperature=temperature, policy=policy)
    return talk


@given(st.lists(CALL, max_size=9), st.sampled_from(["call", "row"]))
def test_every_call_is_in_one_row_with_its_own_tokens_or_in_drops(
    plan: list[tuple[str, int | None, list[int], list[int], float, str]], too_long: str
) -> None:
    talk = talk_of(plan)
    frame, drops = talk.samples(recipe(filter={"max_tokens": 12, "too_long": too_long}))
    calls = {call["call_id"]: call for call in talk.calls}
    taken = frame["transition_ids"].explode().drop_nulls().to_list()
    assert sorted([*taken, *drops["id"]]) == sorted(calls)
    for row in frame.to_dicts():
        whole = [*row["prompt_ids"], *row["response_ids"]]
        assert len(whole) <= 12
        spoken = [0] * len(row["response_ids"])
        for offset, name in zip(row["call_offsets"], row["transition_ids"], strict=True):
            call = calls[name]
            until = len(row["prompt_ids"]) + offset
            length = len(call["response_token_ids"][0])
            assert whole[:until] == call["prompt_token_ids"]
            assert whole[until : until + length] == call["response_token_ids"][0]
            assert row["advantages"][offset : offset + length] == [call["advantage"]] * length
            assert row["token_rewards"][offset + length - 1] == call["reward"]
            assert (call["execution_id"], call["policy"]) == (row["execution_id"], row["policy"])
            assert call["temperature"] == row["temperature"]
            spoken[offset : offset + length] = [1] * length
        assert row["response_mask"] == spoken
        for name in ("rollout_logprobs", "advantages", "loss_weight", "token_rewards"):
            silent = [x for x, is_sampled in zip(row[name], spoken, strict=True) if not is_sampled]
            assert not any(silent), name


@given(st.lists(CALL, max_size=9))
def test_batches_and_order_change_no_row(
    plan: list[tuple[str, int | None, list[int], list[int], float, str]],
) -> None:
    talk = talk_of(plan)
    whole = talk.samples()
    parts = [
        Talk([call for call in talk.calls if call["execution_id"] == one]) for one in ("e2", "e1")
    ]
    turned = Talk(talk.calls[::-1]).samples()
    cut = [part.samples() for part in parts if part.calls]
    for at, order in enumerate((["execution_id", "sample_id"], ["id"])):
        if cut:
            joined = pl.concat([pair[at] for pair in cut])
            assert_frame_equal(joined.sort(order), whole[at].sort(order))
        assert_frame_equal(turned[at].sort(order), whole[at].sort(order))
