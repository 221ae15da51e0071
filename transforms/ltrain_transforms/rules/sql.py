"""SQL of rules: Polars compiles it against declared columns when the recipe is loaded.

An expression reads one row at a time, so that the cut into batches cannot change its value.
Aggregates, window functions, subqueries and the clock are therefore refused. Derived columns carry
what a rule needs of other calls (`repeat`, `previous_status`, `gap`); rules over the rollout read
the columns of the group.
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

QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"")
WINDOW = re.compile(r"\b(over|select)\b", re.IGNORECASE)
CLOCK = re.compile(r"\b(now|current_date|current_time|current_timestamp)\b", re.IGNORECASE)
PARAMETER = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|(?<!:):(?P<name>[A-Za-z_]\w*)")
JSON_PATH = re.compile(r"(?P<column>\w+):(?P<path>\$.*)")
AGGREGATE = (
    "an expression reads one call at a time, so aggregates are refused. For earlier calls, use the "
    "columns repeat, previous_status and gap."
)
RESULT = "(result)"
"""Column for the values of an evaluated expression; the parentheses keep rules from naming it."""
SQL_PREFIX = "SELECT ("
"""Precedes an expression when Polars parses it, so the column numbers of its errors include it."""


def check_expression(
    rule: str, field: str, text: str, columns: pl.Schema, expected: type[object]
) -> None:
    """Compile the SQL of a rule's field on a table with these columns.

    Args:
        expected: bool for a predicate, float for a number.
    """
    context = f"Rule '{rule}', {field} = \"{text}\""
    dtype = _compile(context, text, columns)
    if expected is bool and dtype not in (pl.Boolean, pl.Null):
        raise BadRule(f"{context} returns {dtype}; it must return true or false.")
    if expected is float and not dtype.is_numeric():
        raise BadRule(f"{context} returns {dtype}; it must return a number.")


def check_predicate(field: str, text: str, columns: pl.Schema) -> None:
    """Compile a predicate outside of a rule, such as `where` of a policy."""
    context = f'{field} = "{text}"'
    dtype = _compile(context, text, columns)
    if dtype not in (pl.Boolean, pl.Null):
        raise BadRule(f"{context} returns {dtype}; it must return true or false.")


def column_names(*texts: str) -> set[str]:
    """Return the columns that these expressions name."""
    return {name for text in texts for name in pl.sql_expr(text).meta.root_names()}


def equal_texts(text: str, column: str) -> frozenset[str] | None:
    """Return the texts of which one must be in `column` where a predicate is true.

    None if the predicate does not say so by `=`, `IN`, `AND` and `OR`.
    """
    return _equal_texts(json.loads(pl.sql_expr(text).meta.serialize(format="json")), column)


def _equal_texts(tree: Any, column: str) -> frozenset[str] | None:
    binary = tree.get("BinaryExpr", {})
    operands = [binary.get(side) for side in ("left", "right")]
    if binary.get("op") in ("And", "Or"):
        sides = [_equal_texts(side, column) for side in operands]
        known = [side for side in sides if side is not None]
        if binary["op"] == "Or":
            return frozenset.union(*known) if len(known) == 2 else None
        return frozenset.intersection(*known) if known else None
    function = tree.get("Function", {})
    if "IsIn" in str(function.get("function")):
        operands = function["input"]
    elif binary.get("op") != "Eq":
        return None
    literals = [each for each in operands if each != {"Column": column}]
    if len(literals) != 1 or "Literal" not in literals[0]:
        return None
    literal = pl.Expr.deserialize(StringIO(json.dumps(literals[0])), format="json")
    values = pl.select(literal).to_series()
    several = values.explode() if values.dtype == pl.List else values
    return frozenset(several.cast(pl.String, strict=False).drop_nulls().to_list())


def evaluate_rule(rows: pl.DataFrame, when: str, value: str) -> pl.DataFrame:
    """Return the rows where `when` is true, with a column `value`.

    Where the SQL fails on a row's data, `when` counts as false and `value` is null, so that the
    data of one agent cannot change the rows of another.
    """
    matches = rows.filter(_evaluate(rows, when, pl.Boolean()))
    return matches.with_columns(_evaluate(matches, value, pl.Float64()).alias("value"))


def null_rows(rows: pl.DataFrame, when: str) -> pl.DataFrame:
    """Return the rows where `when` is null, or fails on the row's data."""
    return rows.filter(_evaluate(rows, when, pl.Boolean()).is_null())


def predicate_expression(text: str) -> pl.Expr:
    """Return a predicate as a Polars expression; null where it fails on a row's data."""
    columns = sorted(column_names(text)) or pl.first()  # a constant: any column has the height
    return pl.struct(columns).map_batches(
        lambda rows: _evaluate(rows.struct.unnest(), text, pl.Boolean()), pl.Boolean
    )


def _evaluate(rows: pl.DataFrame, text: str, dtype: pl.DataType) -> pl.Series:
    """Evaluate an expression row by row; null where it fails."""
    named = [name for name in rows.columns if name in column_names(text)] or rows.columns[:1]
    return _evaluate_halves(rows.select(named), compile_lenient(text), dtype)


def _evaluate_halves(rows: pl.DataFrame, expression: pl.Expr, dtype: pl.DataType) -> pl.Series:
    """Evaluate all rows at once; where that fails, evaluate each half, down to single rows.

    A single row is evaluated twice, in one chunk and in memory: Polars divides a column by a
    constant through its reciprocal, except where a chunk or morsel has one row, and then the last
    digit would depend on the batch.
    """
    doubled = pl.concat([rows, rows]) if rows.height == 1 else rows
    query = doubled.rechunk().lazy().with_columns(expression.alias(RESULT))
    try:
        values = query.collect(engine="in-memory")[RESULT].head(rows.height)
        return values.cast(dtype, strict=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        if rows.height <= 1:
            return pl.Series(RESULT, [None] * rows.height, dtype)
    middle = rows.height // 2
    halves = (rows.head(middle), rows.tail(-middle))
    return pl.concat([_evaluate_halves(half, expression, dtype) for half in halves])


@lru_cache(maxsize=256)
def compile_lenient(text: str) -> pl.Expr:
    """Compile an expression whose casts and patterns return null where the data does not fit.

    Polars' CAST ends the whole query on such data. This sets `strict` to false in every function
    that has the option; `_evaluate_halves` covers the functions that do not.
    """
    tree = json.loads(pl.sql_expr(text).meta.serialize(format="json"))
    return pl.Expr.deserialize(StringIO(json.dumps(_without_strict(tree))), format="json")


def _without_strict(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_without_strict(inner) for inner in tree]
    if not isinstance(tree, dict):
        return tree
    inner = {name: _without_strict(value) for name, value in tree.items()}
    if inner.get("options") == "Strict":
        inner["options"] = "NonStrict"
    if inner.get("strict") is True:
        inner["strict"] = False
    return inner


def bind_parameters(rule: str, text: str, params: Mapping[str, object]) -> str:
    """Replace each `:name` in `text` by the value of that parameter, as an SQL literal."""

    def literal(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:  # quoted text
            return match[0]
        if name not in params:
            known = UnknownName("parameter", name, params) if params else "It has no `params`."
            raise BadRule(f"Rule '{rule}' names the parameter ':{name}'. {known}")
        return _sql_literal(params[name])

    return PARAMETER.sub(literal, text)


def _sql_literal(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).upper() if isinstance(value, bool) else repr(value)


def json_path_columns(rule: str, columns: pl.Schema, let: Mapping[str, str]) -> dict[str, pl.Expr]:
    """Return a text column for each JSON path of `let`; null where the path matches nothing."""
    texts = [name for name, dtype in columns.items() if dtype == pl.String]
    matches = {name: JSON_PATH.fullmatch(text) for name, text in let.items()}
    for name, match in matches.items():
        if match is None or match["column"] not in texts:
            allowed = ", ".join(texts)
            raise BadRule(
                f'Rule \'{rule}\', let.{name} = "{let[name]}": write it as "column:$.path", with '
                f"a column of: {allowed}."
            )
        if name in (*columns, "value"):
            raise BadRule(
                f"Rule '{rule}', let.{name}: a column of that name exists already. Choose another."
            )
        _compile_path(f"Rule '{rule}', let.{name} = \"{let[name]}\"", match["path"])
    return {
        name: pl.col(match["column"]).str.json_path_match(match["path"])
        for name, match in matches.items()
        if match is not None
    }


def _compile_path(context: str, path: str) -> None:
    try:
        pl.select(pl.lit("{}").str.json_path_match(path))
    except pl.exceptions.PolarsError as error:
        raise BadRule(
            f"{context}: '{path}' is not a JSON path. Write it like $.rows or $.a[0].b."
        ) from error


def _compile(context: str, text: str, columns: pl.Schema) -> pl.DataType:
    """Return the type of an expression over these columns."""
    _refuse_other_rows_and_clock(context, text)
    # an aggregate turns these two rows into one
    probe = pl.DataFrame({name: [None, None] for name in columns}, columns)
    try:
        column = probe.lazy().sql(f"{SQL_PREFIX}{text}) AS probed FROM self").collect()["probed"]
        pl.sql_expr(text)  # raises on more than one expression
    except pl.exceptions.ColumnNotFoundError as error:
        raise BadRule(_unknown_column(context, text, str(error), list(columns))) from error
    except pl.exceptions.PolarsError as error:
        message = _without_prefix(str(error).split("\n", 1)[0])
        if "GROUP BY" in message or "OVER clause" in message:
            raise BadRule(f"{context}: {AGGREGATE}") from error
        raise BadRule(f"{context}: {message}. Columns: {', '.join(columns)}.") from error
    if len(column) != 2:
        raise BadRule(f"{context}: {AGGREGATE}")
    return column.dtype


def _refuse_other_rows_and_clock(context: str, text: str) -> None:
    unquoted = QUOTED.sub("''", text)
    word = WINDOW.search(unquoted)
    if word is not None:
        raise BadRule(
            f"{context}: an expression reads one call at a time, so windows and subqueries "
            f"({word[0]}) are refused. For earlier calls, use the columns repeat, previous_status "
            "and gap."
        )
    word = CLOCK.search(unquoted)
    if word is not None:
        raise BadRule(
            f"{context}: the same traces must give the same rewards, so the clock ({word[0]}) is "
            "refused. For times, use the columns start, end and gap."
        )


def _without_prefix(message: str) -> str:
    """Make the positions in a Polars message count from the start of the rule's own text."""

    def moved(position: re.Match[str]) -> str:
        line, column = int(position[1]), int(position[2])
        return f"line {line}, column {column - len(SQL_PREFIX) if line == 1 else column}"

    return re.sub(r"Line: (\d+), Column: (\d+)", moved, message)


def _unknown_column(context: str, text: str, message: str, columns: list[str]) -> str:
    match = re.search(r'unable to find column "([^"]+)"', message)
    name = match[1] if match else ""
    positions = [place for place in re.finditer(rf"\b{re.escape(name)}\b", text) if name]
    begin = positions[0].start() if positions else 0
    line, column = text.count("\n", 0, begin) + 1, begin - (text.rfind("\n", 0, begin) + 1) + 1
    unknown = str(UnknownName("column", name, columns))
    hint = unknown[unknown.rindex(" Did you") :] if " Did you" in unknown else ""
    return (
        f"{context}: line {line}, column {column}: there is no column '{name}'.{hint} "
        f"Columns: {', '.join(columns)}."
    )
