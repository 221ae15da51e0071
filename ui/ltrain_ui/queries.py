"""Read-only SQL on the store: named queries, and the first rows of a result as text."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from ltrain_collector.store import Store

MAX_ROWS = 1000
"""Rows of a result that a page shows; its CSV file has all."""
MAX_CHARACTERS = 2000
"""Characters of a cell that a page shows."""

NAMED = {
    "reward by wave": "SELECT run, mode, wave, name, avg(value) AS mean, count() AS judged\n"
    "FROM otel.evaluations WHERE isFinite(value)\n"
    "GROUP BY run, mode, wave, name ORDER BY run, mode, wave, name",
    "failed tools": "SELECT run, tool, error, count() AS calls\n"
    "FROM otel.tool_calls WHERE status = 'error'\n"
    "GROUP BY run, tool, error ORDER BY calls DESC",
    "slow tools": "SELECT * FROM otel.slow_tools LIMIT 100",
    "tokens": "SELECT * FROM otel.token_use ORDER BY first_call",
    "outcomes": "SELECT run, mode, outcome, count() AS rollouts, avg(duration) AS seconds\n"
    "FROM otel.rollouts GROUP BY run, mode, outcome ORDER BY run, mode, outcome",
    "longest answers": "SELECT run, rollout, policy, version, output_tokens, output\n"
    "FROM otel.llm_calls ORDER BY output_tokens DESC LIMIT 20",
    "tasks with spread": "SELECT run, mode, wave, task, name, mean, spread\n"
    "FROM otel.reward_by_task WHERE spread > 0 ORDER BY run, wave, spread DESC LIMIT 100",
    "collector": "SELECT * FROM otel.collector_health",
}
"""Queries by name; each reads views of docs/store.md."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    columns: list[str]
    rows: list[list[str]]
    numeric: list[bool]
    """Whether each column holds numbers."""
    cut: bool
    """Whether the result has more rows."""


def run_query(store: Store, sql: str) -> QueryResult:
    """Return the first rows of a query; the store is not asked for the others.

    Raises:
        QueryFailed: when ClickHouse refuses the query.
    """
    frames = store.frames(sql)
    first = next(frames)
    rows = list[list[str]]()
    for frame in frames:
        rows += [[_text(value) for value in row] for row in frame.head(MAX_ROWS + 1).iter_rows()]
        if len(rows) > MAX_ROWS:
            break
    numeric = [dtype.is_numeric() for dtype in first.dtypes]
    return QueryResult(first.columns, rows[:MAX_ROWS], numeric, len(rows) > MAX_ROWS)


def _text(value: object) -> str:
    if value is None:
        return ""
    text = str(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"


def export_csv(store: Store, sql: str) -> Iterator[bytes]:
    """Return the parts of the whole result of a query as CSV, with a line of names.

    Raises:
        QueryFailed: when ClickHouse refuses the query.
    """
    parts = store.export(sql, "CSVWithNames")
    first = next(parts, b"")  # a refused query fails here, before the response begins
    return chain([first], parts)
