"""The search in sorted contexts gives the results of a search through all of them."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from ltrain_transforms.samples.rows import OpenRows, Row

Tokens = list[int]
TOKENS = st.lists(st.sampled_from([0, 1, 255, 256, 70_000]), min_size=1, max_size=5)
CALL = st.tuples(TOKENS, TOKENS, st.sampled_from([1.0, 1.0, 0.5]), st.none() | st.integers(0, 9))


def coded(tokens: Tokens) -> bytes:
    return array("I", tokens).tobytes()


def agreed(one: Tokens, other: Tokens) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(one), len(other)))


@given(st.lists(CALL, max_size=12))
def test_the_longest_prefix_and_the_nearest_context(
    calls: list[tuple[Tokens, Tokens, float, int | None]],
) -> None:
    rows = OpenRows()
    slow: list[tuple[int, int, float, Tokens]] = []  # opener, last, temperature, context
    contexts: list[Tokens] = []
    for call, (prompt, response, temperature, earlier) in enumerate(calls):
        if earlier is not None and earlier < len(contexts):
            prompt = [*contexts[earlier], *prompt]
        contexts.append([*prompt, *response])
        fitting = [one for one in slow if one[2] == temperature and one[3] == prompt[: len(one[3])]]
        expected = max(fitting, key=lambda one: (len(one[3]), -one[0]), default=None)
        row = rows.pop_prefix(coded(prompt), temperature)
        assert (row and (row.opener, row.last)) == (expected and expected[:2])
        if row is None or expected is None:
            near = max(slow, key=lambda one: (agreed(one[3], prompt), -one[0]), default=None)
            nearest = (-1, -1) if near is None else (near[1], agreed(near[3], prompt))
            assert rows.find_nearest(coded(prompt)) == nearest
            row = Row(call, call, temperature)
        else:
            slow.remove(expected)
            row.last = call
        rows.insert(row, coded(contexts[-1]))
        slow.append((row.opener, call, temperature, contexts[-1]))
