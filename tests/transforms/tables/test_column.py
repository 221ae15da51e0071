"""Rows of a frame become dataclasses, and a missing column is named."""

from dataclasses import dataclass

import polars as pl
import pytest

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.tables import typed_rows


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float | None


def test_rows_have_the_columns_of_their_fields_in_any_order() -> None:
    frame = pl.DataFrame({"value": [0.5, None], "more": [1, 2], "name": ["a", "b"]})
    assert typed_rows(Figure, frame) == [Figure("a", 0.5), Figure("b", None)]
    assert typed_rows(Figure, frame.clear()) == []


def test_a_missing_column_is_named_with_the_others() -> None:
    with pytest.raises(UnknownName, match=r"column of Figure 'value'.*Did you mean 'values'"):
        typed_rows(Figure, pl.DataFrame({"name": ["a"], "values": [1.0]}))
