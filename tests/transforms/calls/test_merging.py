"""Cells of calls: each column is made where its declaration says."""

from ltrain_transforms.calls.from_spans import STATE_COLUMNS, _neighbours
from ltrain_transforms.calls.merging import CELL_NAMES, FIELD_NAMES, MergedCells, field_cells
from ltrain_transforms.dialects.partial import non_empty
from ltrain_transforms.tables import CALLS, CellSource, columns_from
from ltrain_transforms.tables.calls import CALL_COLUMNS


def names(source: CellSource) -> list[str]:
    return [column.name for column in columns_from(source)]


def test_every_column_is_made_by_its_declared_source() -> None:
    assert set(FIELD_NAMES) == set(names(CellSource.FIELD))
    assert set(MergedCells._fields) - {"tokens"} == set(names(CellSource.MERGED))
    later = [column.meta.output_name() for column in _neighbours()]
    assert set(later) - set(STATE_COLUMNS) == set(names(CellSource.NEIGHBOURS))
    assert names(CellSource.LATER) == ["choice"]
    assert names(CellSource.STATES) == ["reads", "action", "turn_index"]
    assert len(set(CELL_NAMES)) == len(CELL_NAMES)
    assert [column.name for column in CALL_COLUMNS] == CALLS.schema.names()


def test_a_declared_field_is_a_cell_without_other_code() -> None:
    merged = non_empty(kind="llm", seed=7)
    assert list(field_cells(merged, ("kind", "seed", "tier"), (None, None, "auto"))) == [
        "llm",
        7,
        "auto",
    ]


def test_a_field_that_no_span_has_gets_its_declared_default() -> None:
    defaults = {c.name: c.default for c in columns_from(CellSource.FIELD) if c.default is not None}
    assert defaults == {"status": "ok", "constrained": False, "delivered": True}
