"""Read-only SQL on the store: named queries, and the first rows of a result as text."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from ltrain_collector.admin import EVALUATED_UNIT_SQL, counted_scores
from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import Store

MAX_ROWS = 1000
"""Rows of a result that a page shows; its CSV file has all."""
MAX_CHARACTERS = 2000
"""Characters of a cell that a page shows."""
MAX_PAGE = 1_000_000
"""Characters of all cells that a page shows."""
MAX_SECONDS = 30
"""Seconds of a query; `ltrain sql` has no such limit."""
TIMEOUT = 159
"""ClickHouse's error code of a query that took too long."""

NAMED = {
    "reward by wave": "SELECT place.1 AS run, place.2 AS mode, place.3 AS wave, name,\n"
    "    avg(score) AS mean, count() AS judged\n"
    f"FROM ({counted_scores('true', f'{EVALUATED_UNIT_SQL} AS unit, name')}\n)\n"
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
    limit: str
    """The limit that left out the rest of the result; '' if there is none."""


def run_query(store: Store, sql: str) -> QueryResult:
    """Return the first rows of a query; the store is not asked for the others.

    Raises:
        QueryFailed: when ClickHouse refuses the query, or it takes too long.
    """
    try:
        return _read_result(store, sql)
    except QueryFailed as error:
        if error.code != TIMEOUT:
            raise
        raise QueryFailed(
            f"The query was ended, because it took longer than the limit of {MAX_SECONDS} s, or "
            "that of the store. Select less, such as one run or the last hour, or use `ltrain "
            f"sql`, which has only the limits of the store. ({error})",
            error.code,
        ) from error


def _read_result(store: Store, sql: str) -> QueryResult:
    frames = store.frames(sql, max_seconds=MAX_SECONDS)
    first = next(frames)
    rows, size, limit = list[list[str]](), 0, ""
    for frame in frames:
        for row in frame.head(MAX_ROWS + 1).iter_rows():
            texts = [_text(value) for value in row]
            size += sum(map(len, texts))
            if len(rows) == MAX_ROWS or (rows and size > MAX_PAGE):
                limit = f"{MAX_ROWS:,} rows" if len(rows) == MAX_ROWS else "a million characters"
                break
            rows.append(texts)
        if limit:
            break
    numeric = [dtype.is_numeric() for dtype in first.dtypes]
    return QueryResult(first.columns, rows, numeric, limit)


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
