"""Rules that are Python functions, found by the entry points of the group `ltrain.rules`.

A function is given the calls of one execution, in call order, and gives a frame of contributions:
`call_id` (null: the whole execution), `value` and, if it likes, `evidence` (the call that made it
so; else the credited one).
"""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points

import polars as pl

from ltrain_instrument.errors import UnknownName
from ltrain_transforms import faults
from ltrain_transforms.errors import BadRule

GROUP = "ltrain.rules"

GIVEN = pl.Schema({"call_id": pl.String(), "value": pl.Float64(), "evidence": pl.String()})
"""What a function gives; `evidence` may be left out."""

CONTRIBUTED = pl.Schema(
    {"execution_id": pl.String(), "seq": pl.Int32(), **GIVEN, "error": pl.String()}
)
"""What is made of it: one row a contribution; where it failed, one row that says how."""

Function = Callable[..., pl.DataFrame]


def found(rule: str, name: str) -> EntryPoint:
    """Find the function of a rule, without importing it.

    Raises:
        BadRule: when no installed package declares it.
    """
    there = {point.name: point for point in entry_points(group=GROUP)}
    if name in there:
        return there[name]
    known = f"{UnknownName('Python rule', name, there)}" if there else "No package declares any."
    raise BadRule(
        f"Rule '{rule}', python = \"{name}\": {known} A package declares one in its "
        f'pyproject.toml: [project.entry-points."{GROUP}"] {name} = "module:function".'
    )


def contributed(
    rule: str, name: str, params: Mapping[str, object], calls: pl.DataFrame
) -> pl.DataFrame:
    """Return what the function returns of each execution, in call order, as `CONTRIBUTED`.

    It sees one execution at a time, so that batches cannot change what it says. Where it raises, or
    returns anything but such a frame, the execution has one row with the error.

    Raises:
        BadRule: when it cannot be imported.
    """
    point = found(rule, name)
    who = f"Rule '{rule}' (python = \"{name}\", {point.value})"
    try:
        function: Function = point.load()
    except Exception as error:  # whatever a user's module raises is that module's fault
        raise BadRule(f"{who} cannot be imported: {_said(error)}.") from error
    groups = calls.sort("execution_id", "seq").partition_by(
        "execution_id", as_dict=True, include_key=True, maintain_order=True
    )
    parts = [_of_one(function, params, str(key[0]), own) for key, own in groups.items()]
    return pl.concat([CONTRIBUTED.to_frame(), *parts])


def _of_one(
    function: Function, params: Mapping[str, object], execution: str, own: pl.DataFrame
) -> pl.DataFrame:
    try:
        rows = _checked(function(own, **params))
        _refuse_strangers(rows, own)
        order = own.select(evidence="call_id", seq="seq")
        placed = rows.join(order, "evidence", "left", maintain_order="left").with_columns(
            execution_id=pl.lit(execution), error=pl.lit(None, pl.String)
        )
    # broad: a user's function raises whatever the data makes it raise; the other executions must
    # be judged, and each failure is a drop that names the execution and the error
    except Exception as error:
        failed = {
            "execution_id": execution,
            "evidence": execution,
            "error": faults.error_text(error),
        }
        return pl.DataFrame([failed], CONTRIBUTED)
    return placed.sort("seq", nulls_last=True, maintain_order=True).select(
        pl.col(name).cast(dtype) for name, dtype in CONTRIBUTED.items()
    )


def _refuse_strangers(rows: pl.DataFrame, own: pl.DataFrame) -> None:
    known = own["call_id"].implode()
    for column in ("call_id", "evidence"):
        strange = rows.filter(pl.col(column).is_not_null() & ~pl.col(column).is_in(known))
        if strange.height:
            raise BadRule(
                f"it names a call in `{column}` that the execution does not have: "
                f"{strange[column][0]}"
            )


def _checked(given: object) -> pl.DataFrame:
    """Return the function's frame with the columns and types of `GIVEN`."""
    frame = given.collect() if isinstance(given, pl.LazyFrame) else given
    if not isinstance(frame, pl.DataFrame):
        kind = type(given).__name__
        raise BadRule(f"it gave a {kind}; it must give a Polars frame: {', '.join(GIVEN)}")
    for name in frame.columns:
        if name not in GIVEN:
            raise BadRule(f"it gave {UnknownName('column', name, GIVEN)}")
    lacking = [name for name in ("call_id", "value") if name not in frame.columns]
    if lacking:
        raise BadRule(f"it gave no column '{lacking[0]}'; it must give call_id and value")
    dtype = frame.schema["value"]
    if not (dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)):
        raise BadRule(f"it gave values of {dtype}; they must be numbers")
    if "evidence" not in frame.columns:
        frame = frame.with_columns(evidence=pl.col("call_id"))
    return frame.select(pl.col(name).cast(dtype) for name, dtype in GIVEN.items())


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".")
