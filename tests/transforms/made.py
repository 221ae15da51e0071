"""Build rows of `SPANS` and `LOGS` by hand, as they are read from the store."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from ltrain_instrument.attributes import SCOPE_CAPTURE
from ltrain_transforms.tables import LOGS, SPANS
from ltrain_transforms.traces import Role
from ltrain_transforms.traces.sender_roles import SCOPES

NOON = 1_790_000_000_000_000_000
MS = 1_000_000
Row = dict[str, Any]


def span(
    span_id: str,
    attributes: Mapping[str, str] | None = None,
    *,
    parent: str | None = None,
    at: tuple[int, int] = (0, 1),
    scope: str = "a-library",
    **more: Any,
) -> Row:
    """Return a row of `SPANS`; `at` is start and end in milliseconds, `more` are columns."""
    return {
        "execution_id": "e.1",
        "trace_id": "t",
        "span_id": span_id,
        "parent_id": parent,
        "process": "worker",
        "scope": scope,
        "name": span_id,
        "start": NOON + at[0] * MS,
        "end": NOON + at[1] * MS,
        "status": "Unset",
        "attributes": dict(attributes or {}),
        "events": "[]",
        "links": [],
        **sender_columns(scope),
        **more,
    }


def sender_columns(scope: str) -> Row:
    """Return `sender`, `trusted` and `role` of a record that a local program wrote."""
    role = Role.CAPTURE if scope == SCOPE_CAPTURE else SCOPES.get(scope, Role.AGENT)
    return {"sender": "local", "trusted": True, "role": str(role)}


def spans(*rows: Row) -> pl.DataFrame:
    """Return a frame of `SPANS`."""
    return _frame(rows, SPANS.schema)


def logs(*rows: Row) -> pl.DataFrame:
    """Return a frame of `LOGS`."""
    return _frame(rows, LOGS.schema)


def _frame(rows: Sequence[Row], schema: pl.Schema) -> pl.DataFrame:
    return pl.DataFrame({name: [row.get(name) for row in rows] for name in schema}, schema)


def texts(messages: str | None) -> list[tuple[str, str]]:
    """Return role and content of each part of JSON messages: its text, tool name or result."""
    return [
        (message["role"], str(part.get("content") or part.get("name") or part.get("response")))
        for message in json.loads(messages or "[]")
        for part in message["parts"]
    ]
