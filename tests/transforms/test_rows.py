"""Which calls share a training row, from literal tokens."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrain_transforms.rows import Row, Turn, following, merged, weights


def turn(t: int, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0) -> Turn:
    return Turn(
        call_id=f"c{t}",
        t=t,
        prompt=list(prompt),
        response=list(response),
        logprobs=[-0.5] * len(response),
        temperature=temperature,
        version=0,
        advantage=float(t + 1),
        reward=float(-t),
    )


def calls_of(rows: list[Row]) -> list[list[str]]:
    return [[one.call_id for one in row.turns] for row in rows]


def test_an_extension_joins_the_row_and_what_came_between_is_masked() -> None:
    (row,) = merged([turn(0, (1, 2), (3, 4)), turn(1, (1, 2, 3, 4, 9, 9), (5,))], 100)
    assert row.prompt == [1, 2]
    assert row.response == [3, 4, 9, 9, 5]
    assert row.mask == [1, 1, 0, 0, 1]
    assert row.logprobs == [-0.5, -0.5, 0.0, 0.0, -0.5]
    assert row.advantages == [1.0, 1.0, 0.0, 0.0, 2.0]
    assert row.rewards == [0.0, 0.0, 0.0, 0.0, -1.0]
    assert row.offsets == [0, 4]


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ((1, 2, 9), "it lacks what was sampled"),
        ((1, 2, 3, 8, 9), "one token was rendered differently"),
        ((3, 4), "it begins anew"),
    ],
)
def test_what_does_not_extend_exactly_starts_a_row(prompt: tuple[int, ...], why: str) -> None:
    rows = merged([turn(0, (1, 2), (3, 4)), turn(1, prompt, (5,))], 100)
    assert calls_of(rows) == [["c0"], ["c1"]], why


def test_of_two_branches_the_first_goes_on_and_the_second_starts_a_row() -> None:
    root, left, right = (
        turn(0, (1,), (2,)),
        turn(1, (1, 2, 7), (3,)),
        turn(2, (1, 2, 8), (4,)),
    )
    rows = merged([root, left, right], 100)
    assert calls_of(rows) == [["c0", "c1"], ["c2"]]


def test_every_open_row_may_be_gone_on_with() -> None:
    turns = [
        turn(0, (1,), (2,)),
        turn(1, (5,), (6,)),
        turn(2, (1, 2, 3), (4,)),
        turn(3, (5, 6, 7), (8,)),
    ]
    assert calls_of(merged(turns, 100)) == [["c0", "c2"], ["c1", "c3"]]


def test_the_longest_context_is_gone_on_with() -> None:
    turns = [turn(0, (1,), (2,)), turn(1, (1,), (2, 3)), turn(2, (1, 2, 3, 4), (5,))]
    assert calls_of(merged(turns, 100)) == [["c0"], ["c1", "c2"]]


def test_another_temperature_or_too_great_a_length_starts_a_row() -> None:
    one, other = turn(0, (1,), (2,)), turn(1, (1, 2, 3), (4,), temperature=0.5)
    assert calls_of(merged([one, other], 100)) == [["c0"], ["c1"]]
    assert calls_of(merged([one, turn(1, (1, 2, 3), (4,))], 3)) == [["c0"], ["c1"]]


def test_a_row_goes_on_in_the_next_to_begin_after_its_end() -> None:
    rows = merged([turn(0, (1,), (2,)), turn(1, (7,), (8,)), turn(2, (9,), (3,))], 100)
    after = [None if row is None else row.turns[0].t for row in following(rows)]
    assert after == [1, 2, None]


@pytest.mark.parametrize(
    ("weigh", "expected"),
    [
        ("token", [[1.0, 1.0, 0.0, 1.0], [1.0]]),
        ("call", [[0.5, 0.5, 0.0, 1.0], [1.0]]),
        ("rollout", [[0.25, 0.25, 0.0, 0.25], [0.25]]),
    ],
)
def test_what_is_weighed_equally_sums_to_the_same(weigh: str, expected: list[list[float]]) -> None:
    turns = [turn(0, (1,), (2, 3)), turn(1, (1, 2, 3, 9), (4,)), turn(2, (8,), (5,))]
    assert weights(merged(turns, 100), weigh) == expected


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=4)


@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=8))
def test_every_call_is_in_one_row_with_its_own_tokens(spoken: list[tuple[list[int], ...]]) -> None:
    turns = [turn(t, prompt, response) for t, (prompt, response) in enumerate(spoken)]
    rows = merged(turns, 100)
    assert sorted(one.t for row in rows for one in row.turns) == list(range(len(turns)))
    for row in rows:
        whole = [*row.prompt, *row.response]
        for offset, one in zip(row.offsets, row.turns, strict=True):
            until = len(row.prompt) + offset
            assert whole[:until] == one.prompt
            assert whole[until : until + len(one.response)] == one.response
        assert sum(row.mask) == sum(len(one.response) for one in row.turns)
