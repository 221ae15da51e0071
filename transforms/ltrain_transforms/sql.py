"""A rule's SQL: compiled against the columns of `calls` by Polars' own SQL, and checked on load.

A rule sees one call at a time, so that shards cannot change it: aggregates, window functions and
subqueries are refused. What needs neighbours is a ready column: `repeat`, `previous_status`, `gap`.
"""

import re
from collections.abc import Mapping

import polars as pl

from ltrain_transforms.errors import BadRule
from ltrain_transforms.tables import CALLS

QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"")
FORBIDDEN = re.compile(r"\b(over|select)\b", re.IGNORECASE)
PATH = re.compile(r"(?P<column>\w+):(?P<path>\$.*)")


def check(rule: str, when: str, value: str, let: Mapping[str, str]) -> None:
    """Compile both expressions on an empty trace.

    Raises:
        BadRule: when one does not parse, names no such column, sees more than one call, or has the
            wrong type.
    """
    # two rows, because an aggregate would make one of them
    probe = pl.DataFrame({name: [None, None] for name in CALLS.schema}, CALLS.schema)
    named = with_names(rule, probe.lazy(), let)
    for field, text in (("when", when), ("value", value)):
        where = f"Rule '{rule}', {field} = \"{text}\""
        _refuse_neighbours(where, text)
        dtype = _probed(where, named, text)
        if field == "when" and dtype not in (pl.Boolean, pl.Null):
            raise BadRule(f"{where} gives {dtype}; it must give true or false.")
        if field == "value" and not dtype.is_numeric():
            raise BadRule(f"{where} gives {dtype}; it must give a number.")


def check_predicate(field: str, text: str) -> None:
    """Compile a predicate over the columns of `calls`, one call at a time, on an empty trace.

    Raises:
        BadRule: as `check` does.
    """
    where = f'{field} = "{text}"'
    _refuse_neighbours(where, text)
    probe = pl.DataFrame({name: [None, None] for name in CALLS.schema}, CALLS.schema)
    dtype = _probed(where, probe.lazy(), text)
    if dtype not in (pl.Boolean, pl.Null):
        raise BadRule(f"{where} gives {dtype}; it must give true or false.")


def fired(calls: pl.LazyFrame, when: str, value: str) -> pl.LazyFrame:
    """Give the rows of `calls` where `when` holds, with a column `value`."""
    return calls.sql(f"SELECT *, CAST(({value}) AS DOUBLE) AS value FROM self WHERE ({when})")


def with_names(rule: str, calls: pl.LazyFrame, let: Mapping[str, str]) -> pl.LazyFrame:
    """Add a text column for each JSON path of `let`, null where there is none.

    Raises:
        BadRule: when a path is not `column:$.path` of a text column, or a name is taken.
    """
    texts = [name for name, dtype in CALLS.schema.items() if dtype == pl.String]
    columns = {}
    for name, text in let.items():
        found = PATH.fullmatch(text)
        if found is None or found["column"] not in texts:
            allowed = ", ".join(texts)
            raise BadRule(
                f'Rule \'{rule}\', let.{name} = "{text}": it must read "column:$.path", '
                f"the column one of: {allowed}."
            )
        if name in CALLS.schema:
            raise BadRule(f"Rule '{rule}', let.{name}: there is a column of that name already.")
        columns[name] = pl.col(found["column"]).str.json_path_match(found["path"])
    return calls.with_columns(**columns)


def _refuse_neighbours(where: str, text: str) -> None:
    word = FORBIDDEN.search(QUOTED.sub("''", text))
    if word is not None:
        raise BadRule(
            f"{where}: a rule sees one call at a time; windows and subqueries ({word[0]}) are "
            "refused. For neighbours there are the columns repeat, previous_status and gap."
        )


def _probed(where: str, named: pl.LazyFrame, text: str) -> pl.DataType:
    try:
        column = named.sql(f"SELECT ({text}) AS probed FROM self").collect()["probed"]
    except pl.exceptions.PolarsError as error:
        said = str(error).split("\n", 1)[0]
        columns = ", ".join(named.collect_schema().names())
        raise BadRule(f"{where}: {said}. Columns: {columns}.") from error
    if len(column) != 2:
        raise BadRule(f"{where}: a rule sees one call at a time; aggregates are refused.")
    return column.dtype
