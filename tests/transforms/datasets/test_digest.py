"""The digest of rows does not depend on order and files, and differs for different rows."""

import polars as pl
import pytest

from ltrain_transforms.datasets.digest import BITS, dataset_id, rows_digest

SCHEMA = {
    "id": pl.String(),
    "input": pl.String(),
    "output": pl.String(),
    "ids": pl.List(pl.UInt32()),
    "choices": pl.List(pl.List(pl.Float32())),
}
ROWS = [
    ("a", "hello", "world", [1, 2, 3], [[0.5], []]),
    ("b", None, "", [], None),
    ("c", "", None, None, []),
    ("d", "hé", "…", [4], [[], [0.25, -1.0]]),
]


def frame(*rows: tuple[object, ...]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), SCHEMA, orient="row")


def test_order_and_files_change_nothing() -> None:
    whole = frame(*ROWS)
    assert rows_digest(whole.reverse()) == rows_digest(whole)
    for cut in range(len(ROWS) + 1):
        parts = rows_digest(whole[:cut]) + rows_digest(whole[cut:])
        assert parts % (1 << BITS) == rows_digest(whole)


@pytest.mark.parametrize(
    "other",
    [
        ("a", "hellow", "orld", [1, 2, 3], [[0.5], []]),
        ("a", "hello", "world", [1, 2], [[0.5], []]),
        ("a", "hello", "world", [1, 2, 3], [[], [0.5]]),
        ("a", "hello", "world", [1, 2, 3], [[0.5]]),
        ("a", None, "world", [1, 2, 3], [[0.5], []]),
    ],
)
def test_what_differs_has_another_digest(other: tuple[object, ...]) -> None:
    assert rows_digest(frame(other)) != rows_digest(frame(ROWS[0]))


def test_nothing_and_empty_differ() -> None:
    (a, text, output, ids, choices) = ROWS[0]
    for empty, nothing in (("", None), ([], None)):
        column = 1 if empty == "" else 3
        rows = [[a, text, output, ids, choices] for _ in range(2)]
        rows[0][column], rows[1][column] = empty, nothing
        one, other = (rows_digest(frame(tuple(row))) for row in rows)
        assert one != other


def test_the_same_row_twice_counts_twice() -> None:
    assert rows_digest(frame(ROWS[0], ROWS[0])) == 2 * rows_digest(frame(ROWS[0])) % (1 << BITS)


def test_an_id_is_of_the_digests_by_table() -> None:
    assert dataset_id({"calls": 1, "drops": 2}) == dataset_id({"drops": 2, "calls": 1})
    assert dataset_id({"calls": 1, "drops": 2}) != dataset_id({"calls": 2, "drops": 1})
