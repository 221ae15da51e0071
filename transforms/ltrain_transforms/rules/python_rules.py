"""Rules that are Python functions, declared under the entry points `ltrain.rules`.

A function receives the calls of one execution, in call order, and returns a frame of contributions:
`call_id` (null: the whole execution), `value`, and optionally `evidence` (the call that caused the
contribution; default: the credited one).
"""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points

import polars as pl

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.errors import BadRule
from ltrain_transforms.traces import error_text

GROUP = "ltrain.rules"

RETURNED = pl.Schema({"call_id": pl.String(), "value": pl.Float64(), "evidence": pl.String()})
"""The columns that a function returns; `evidence` is optional."""

RESULTS = pl.Schema(
    {"execution_id": pl.String(), "seq": pl.Int32(), **RETURNED, "error": pl.String()}
)
"""One row a contribution; one row with the `error` where the function failed on an execution."""

Function = Callable[..., pl.DataFrame]


def find_entry_point(rule: str, name: str) -> EntryPoint:
    """Return the entry point of a rule's function, without importing it."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name in points:
        return points[name]
    known = f"{UnknownName('Python rule', name, points)}" if points else "No package declares any."
    raise BadRule(
        f"Rule '{rule}', python = \"{name}\": {known} A package declares one in its "
        f'pyproject.toml: [project.entry-points."{GROUP}"] {name} = "module:function".'
    )


def run_python_rule(
    rule: str, name: str, params: Mapping[str, object], calls: pl.DataFrame
) -> pl.DataFrame:
    """Return the function's contributions to each execution, in call order, as `RESULTS`.

    The function receives one execution at a time, so that the cut into batches cannot change its
    result. Where it raises or returns an invalid frame, the execution gets one row with the error.
    """
    point = find_entry_point(rule, name)
    try:
        function: Function = point.load()
    except Exception as error:  # a user's module may raise anything on import
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        raise BadRule(
            f"Rule '{rule}' (python = \"{name}\", {point.value}) cannot be imported: {reason}."
        ) from error
    executions = calls.sort("execution_id", "seq").partition_by(
        "execution_id", as_dict=True, include_key=True, maintain_order=True
    )
    results = [_run(function, params, str(key[0]), own) for key, own in executions.items()]
    return pl.concat([RESULTS.to_frame(), *results])


def _run(
    function: Function, params: Mapping[str, object], execution: str, calls: pl.DataFrame
) -> pl.DataFrame:
    try:
        rows = _checked(function(calls, **params))
        _refuse_unknown_calls(rows, calls)
        order = calls.select(evidence="call_id", seq="seq")
        numbered = rows.join(order, "evidence", "left", maintain_order="left").with_columns(
            execution_id=pl.lit(execution), error=pl.lit(None, pl.String)
        )
    # broad: the data may make a user's function raise anything; the rule still runs on the other
    # executions, and each failure becomes a drop with the execution and the error
    except Exception as error:
        failure = {"execution_id": execution, "evidence": execution, "error": error_text(error)}
        return pl.DataFrame([failure], RESULTS)
    return numbered.sort("seq", nulls_last=True, maintain_order=True).select(
        pl.col(name).cast(dtype) for name, dtype in RESULTS.items()
    )


def _refuse_unknown_calls(rows: pl.DataFrame, calls: pl.DataFrame) -> None:
    known = calls["call_id"].implode()
    for column in ("call_id", "evidence"):
        unknown = rows.filter(pl.col(column).is_not_null() & ~pl.col(column).is_in(known))
        if unknown.height:
            raise BadRule(
                f"it names a call in `{column}` that the execution does not have: "
                f"{unknown[column][0]}"
            )


def _checked(returned: object) -> pl.DataFrame:
    """Return the function's frame with the columns and types of `RETURNED`."""
    frame = returned.collect() if isinstance(returned, pl.LazyFrame) else returned
    if not isinstance(frame, pl.DataFrame):
        kind = type(returned).__name__
        columns = ", ".join(RETURNED)
        raise BadRule(f"it returned a {kind}; it must return a Polars frame with {columns}")
    for name in frame.columns:
        if name not in RETURNED:
            raise BadRule(f"it returned {UnknownName('column', name, RETURNED)}")
    missing = [name for name in ("call_id", "value") if name not in frame.columns]
    if missing:
        raise BadRule(f"it returned no column '{missing[0]}'; it must return call_id and value")
    dtype = frame.schema["value"]
    if not (dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)):
        raise BadRule(f"it returned values of type {dtype}; they must be numbers")
    if "evidence" not in frame.columns:
        frame = frame.with_columns(evidence=pl.col("call_id"))
    return frame.select(pl.col(name).cast(dtype) for name, dtype in RETURNED.items())
