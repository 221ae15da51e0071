"""A rule's SQL: compiled against declared columns by Polars' own SQL, and checked on load.

A rule sees one row at a time, so that shards cannot change it: aggregates, window functions and
subqueries are refused, and what asks a clock. What needs neighbours is a ready column: `repeat`,
`previous_status`, `gap`; what needs a group is one of a rule over the rollout.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from io import StringIO
from typing import Any

import polars as pl

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.errors import BadRule

Parameter = str | int | float | bool

QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"")
NEIGHBOURS = re.compile(r"\b(over|select)\b", re.IGNORECASE)
CLOCK = re.compile(r"\b(now|current_date|current_time|current_timestamp)\b", re.IGNORECASE)
PARAMETER = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|(?<!:):(?P<name>[A-Za-z_]\w*)")
PATH = re.compile(r"(?P<column>\w+):(?P<path>\$.*)")
ALONE = (
    "a rule sees one call at a time; aggregates are refused. For neighbours there are the columns "
    "repeat, previous_status and gap."
)
FOUND = "(found)"
"""The column that an expression's values are put into; no rule can name it."""
BEFORE = "SELECT ("
"""What stands before a rule's text when Polars parses it: its columns count from there."""


def check(rule: str, field: str, text: str, columns: pl.Schema, wanted: type[object]) -> None:
    """Compile `text` on an empty table of these columns.

    Args:
        wanted: bool for a predicate, float for a number.

    Raises:
        BadRule: when it does not parse, names no such column, sees more than one row, or has the
            wrong type.
    """
    where = f"Rule '{rule}', {field} = \"{text}\""
    _refuse(where, text)
    dtype = _probed(where, text, columns)
    if wanted is bool and dtype not in (pl.Boolean, pl.Null):
        raise BadRule(f"{where} gives {dtype}; it must give true or false.")
    if wanted is float and not dtype.is_numeric():
        raise BadRule(f"{where} gives {dtype}; it must give a number.")


def check_predicate(field: str, text: str, columns: pl.Schema) -> None:
    """Compile a predicate that is no rule's.

    Raises:
        BadRule: as `check` does.
    """
    where = f'{field} = "{text}"'
    _refuse(where, text)
    dtype = _probed(where, text, columns)
    if dtype not in (pl.Boolean, pl.Null):
        raise BadRule(f"{where} gives {dtype}; it must give true or false.")


def names(*texts: str) -> set[str]:
    """Give the columns that these expressions name."""
    return {name for text in texts for name in pl.sql_expr(text).meta.root_names()}


def fired(rows: pl.DataFrame, when: str, value: str) -> pl.DataFrame:
    """Return the rows where `when` holds, with a column `value`.

    Where the SQL fails on a row's data, `when` does not hold and `value` is null: what one agent
    writes changes no other row.
    """
    held = rows.filter(_evaluated(rows, when, pl.Boolean()))
    return held.with_columns(_evaluated(held, value, pl.Float64()).alias("value"))


def unknown(rows: pl.DataFrame, when: str) -> pl.DataFrame:
    """Return the rows where `when` is null: nothing is known of them, or it fails."""
    return rows.filter(_evaluated(rows, when, pl.Boolean()).is_null())


def guarded(text: str) -> pl.Expr:
    """Return a predicate as an expression over all rows; null where it fails on a row's data."""
    columns = sorted(names(text)) or pl.first()  # any column has the rows' number
    return pl.struct(columns).map_batches(
        lambda rows: _evaluated(rows.struct.unnest(), text, pl.Boolean()), pl.Boolean
    )


def _evaluated(rows: pl.DataFrame, text: str, dtype: pl.DataType) -> pl.Series:
    """Evaluate an expression row by row; null where it fails."""
    named = [name for name in rows.columns if name in names(text)] or rows.columns[:1]
    return _by_halves(rows.select(named), lenient(text), dtype)


def _by_halves(rows: pl.DataFrame, expression: pl.Expr, dtype: pl.DataType) -> pl.Series:
    """Evaluate all rows at once; where that fails, each half, down to the rows that fail.

    A row's value depends on that row alone: Polars multiplies a column by the reciprocal of a
    number that it is divided by, but divides where it has one row, one chunk of one row, or one
    row of a morsel, and the last digit differs.
    """
    doubled = pl.concat([rows, rows]) if rows.height == 1 else rows
    query = doubled.rechunk().lazy().with_columns(expression.alias(FOUND))
    try:
        found = query.collect(engine="in-memory")[FOUND].head(rows.height)
        return found.cast(dtype, strict=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        if rows.height <= 1:
            return pl.Series(FOUND, [None] * rows.height, dtype)
    middle = rows.height // 2
    halves = (rows.head(middle), rows.tail(-middle))
    return pl.concat([_by_halves(half, expression, dtype) for half in halves])


@lru_cache(maxsize=256)
def lenient(text: str) -> pl.Expr:
    """Compile an expression whose casts and patterns give null where the data does not fit.

    Polars' CAST ends the query there; TRY_CAST, and every other function that is strict by an
    option, does not. What has no such option is left to `_by_halves`.
    """
    tree = json.loads(pl.sql_expr(text).meta.serialize(format="json"))
    return pl.Expr.deserialize(StringIO(json.dumps(_unstrict(tree))), format="json")


def _unstrict(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_unstrict(inner) for inner in tree]
    if not isinstance(tree, dict):
        return tree
    inner = {name: _unstrict(value) for name, value in tree.items()}
    if inner.get("options") == "Strict":
        inner["options"] = "NonStrict"
    if inner.get("strict") is True:
        inner["strict"] = False
    return inner


def bound(rule: str, text: str, params: Mapping[str, Parameter]) -> str:
    """Put the values of `params` in place of `:name`, as SQL literals.

    Raises:
        BadRule: when the text names a parameter that is not there.
    """

    def literal(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:  # quoted text
            return found[0]
        if name not in params:
            known = UnknownName("parameter", name, params) if params else "It has no `params`."
            raise BadRule(f"Rule '{rule}' names the parameter ':{name}'. {known}")
        return _literal(params[name])

    return PARAMETER.sub(literal, text)


def _literal(value: Parameter) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).upper() if isinstance(value, bool) else repr(value)


def with_names(rule: str, columns: pl.Schema, let: Mapping[str, str]) -> dict[str, pl.Expr]:
    """Give a text column for each JSON path of `let`, null where there is none.

    Raises:
        BadRule: when a path is not `column:$.path` of a text column, or a name is taken.
    """
    texts = [name for name, dtype in columns.items() if dtype == pl.String]
    found = {name: PATH.fullmatch(text) for name, text in let.items()}
    for name, path in found.items():
        if path is None or path["column"] not in texts:
            allowed = ", ".join(texts)
            raise BadRule(
                f'Rule \'{rule}\', let.{name} = "{let[name]}": it must read "column:$.path", '
                f"the column one of: {allowed}."
            )
        if name in (*columns, "value"):
            raise BadRule(f"Rule '{rule}', let.{name}: there is a column of that name already.")
        _compile_path(f"Rule '{rule}', let.{name} = \"{let[name]}\"", path["path"])
    return {
        name: pl.col(path["column"]).str.json_path_match(path["path"])
        for name, path in found.items()
        if path is not None
    }


def _compile_path(where: str, path: str) -> None:
    try:
        pl.select(pl.lit("{}").str.json_path_match(path))
    except pl.exceptions.PolarsError as error:
        raise BadRule(f"{where}: '{path}' is no JSON path, such as $.rows or $.a[0].b.") from error


def _refuse(where: str, text: str) -> None:
    unquoted = QUOTED.sub("''", text)
    word = NEIGHBOURS.search(unquoted)
    if word is not None:
        raise BadRule(
            f"{where}: a rule sees one call at a time; windows and subqueries ({word[0]}) are "
            "refused. For neighbours there are the columns repeat, previous_status and gap."
        )
    word = CLOCK.search(unquoted)
    if word is not None:
        raise BadRule(
            f"{where}: the same traces must give the same rewards, so the clock ({word[0]}) is "
            "refused. Of times there are the columns start, end and gap."
        )


def _probed(where: str, text: str, columns: pl.Schema) -> pl.DataType:
    # two rows, because an aggregate would make one of them
    probe = pl.DataFrame({name: [None, None] for name in columns}, columns)
    try:
        column = probe.lazy().sql(f"{BEFORE}{text}) AS probed FROM self").collect()["probed"]
        pl.sql_expr(text)  # refuses what is more than one expression
    except pl.exceptions.ColumnNotFoundError as error:
        raise BadRule(_unknown(where, text, str(error), list(columns))) from error
    except pl.exceptions.PolarsError as error:
        said = _placed(str(error).split("\n", 1)[0])
        if "GROUP BY" in said or "OVER clause" in said:
            raise BadRule(f"{where}: {ALONE}") from error
        raise BadRule(f"{where}: {said}. Columns: {', '.join(columns)}.") from error
    if len(column) != 2:
        raise BadRule(f"{where}: {ALONE}")
    return column.dtype


def _placed(said: str) -> str:
    """Count the columns of Polars' message from the beginning of the rule's own text."""

    def moved(place: re.Match[str]) -> str:
        line, column = int(place[1]), int(place[2])
        return f"line {line}, column {column - len(BEFORE) if line == 1 else column}"

    return re.sub(r"Line: (\d+), Column: (\d+)", moved, said)


def _unknown(where: str, text: str, said: str, columns: list[str]) -> str:
    found = re.search(r'unable to find column "([^"]+)"', said)
    name = found[1] if found else ""
    known = [place for place in re.finditer(rf"\b{re.escape(name)}\b", text) if name]
    begin = known[0].start() if known else 0
    line, column = text.count("\n", 0, begin) + 1, begin - (text.rfind("\n", 0, begin) + 1) + 1
    unknown = str(UnknownName("column", name, columns))
    hint = unknown[unknown.rindex(" Did you") :] if " Did you" in unknown else ""
    return (
        f"{where}: line {line}, column {column}: there is no column '{name}'.{hint} "
        f"Columns: {', '.join(columns)}."
    )
