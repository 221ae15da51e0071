"""Migrate a store to the tables and views of this ltrain: forward only, any number of times.

A step that runs again changes nothing, so two programs can migrate a store at the same time, and
the next migration finishes one that was killed. A store of 0.1.0 has no record of steps: all steps
run and change nothing.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

import polars as pl
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_exponential

from ltrain_collector import client_events, schema
from ltrain_collector.errors import BadTable, QueryFailed, StoreNewer
from ltrain_collector.signals import LOGS, TABLES, TRACES, Table
from ltrain_instrument.installation import upgrade_advice

CONCURRENT_CHANGE_CODES = (57, 81, 82, 517, 529)
"""ClickHouse error codes of a conflict with another migration that makes the same change."""

MAX_ATTEMPTS = 8

FIRST_WAIT = 0.05
"""Seconds before the second attempt; each further wait is twice as long."""


class Database(Protocol):
    """The methods of a store that a migration calls."""

    name: str

    def query(self, sql: str, params: Mapping[str, object] | None = None) -> pl.DataFrame: ...
    def command(self, sql: str) -> None: ...


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """The changes of a migration."""

    steps: tuple[str, ...]
    """Steps that this store did not have."""
    version: int
    """The number of steps that this program knows."""


def migrate(store: Database, tables: Mapping[str, str]) -> MigrationResult:
    """Run the missing steps, then create the views again.

    Args:
        tables: tables that an exporter created, by the key of ltrain's own.
    """
    applied = _applied_steps(store)
    _refuse_newer(store, applied)
    added = _exporter_tables(tables)
    columns = _read_columns(store, {*TABLES, *tables.values(), *added.values()})
    tables = {**tables, **{key: table for key, table in added.items() if columns[table]}}
    owned = {table.key for table in TABLES.values() if _is_owned(store, table, tables, columns)}
    required = [schema.DATABASE]
    for table in TABLES.values():
        required += table.steps if table.key in owned else ()
    required.append(schema.RENAMED_VIEWS)
    if {TRACES.tables[0].key, LOGS.tables[0].key} <= owned:
        required += client_events.STEPS
    new = tuple(step for step in dict.fromkeys(required) if step not in applied)
    for step in new:
        for statement in schema.read_statements(step):
            _run_statement(store, statement)
        _record_step(store, step, schema.steps().index(step) + 1)
    for table in TABLES.values():
        source = tables.get(table.key, table.name)
        own = table.key in owned or schema.OWN_COLUMN in columns[source]
        for view in schema.view_files(table, own):
            for statement in schema.read_statements(view, table=source, view=table.view):
                _run_statement(store, statement)
    for view in schema.USER_VIEWS:
        for statement in schema.read_statements(view):
            _run_statement(store, statement)
    newest = len(schema.steps())
    if int(store.query(schema.VERSION).item()) != newest:
        _record_step(store, schema.VIEWS, newest)
    return MigrationResult(new, newest)


def _refuse_newer(store: Database, applied: Set[str]) -> None:
    known = {*schema.steps(), schema.VIEWS}
    if unknown := sorted(applied - known):
        raise StoreNewer(
            f"A newer ltrain changed the store {store.name} (steps {', '.join(unknown)}), and "
            f"ltrain {program_version()} does not know these steps. {upgrade_advice()}"
        )


def _is_owned(
    store: Database, table: Table, tables: Mapping[str, str], columns: Mapping[str, Set[str]]
) -> bool:
    """Return whether ltrain creates and changes a table."""
    source = tables.get(table.key)
    if source is None:
        return not columns[table.name] or schema.OWN_COLUMN in columns[table.name]
    if not columns[source]:
        raise BadTable(
            f"There is no table {source} in the store {store.name}. Name the one that the "
            f"collector's exporter writes {table.key} to, e.g. {table.name}."
        )
    return False


def _exporter_tables(tables: Mapping[str, str]) -> dict[str, str]:
    """Return the exporter's other tables, in the database of its traces; some may not exist."""
    spans = TRACES.tables[0]
    database = tables.get(spans.key, spans.name).rpartition(".")[0]
    if database == "otel":
        return {}
    return {
        table.key: f"{database or 'default'}.{table.name.rpartition('.')[2]}"
        for table in TABLES.values()
        if table.key not in tables
    }


def _read_columns(store: Database, tables: Set[str]) -> dict[str, set[str]]:
    """Return the columns of each table; none of a table that does not exist."""
    names = {table: table.rpartition(".")[::2] for table in tables}
    databases = sorted({database or "default" for database, _ in names.values()})
    rows = store.query(
        "SELECT database, table, name FROM system.columns "
        "WHERE has({databases:Array(String)}, database)",
        {"databases": databases},
    ).rows()
    columns: dict[tuple[str, str], set[str]] = {}
    for database, table, name in rows:
        columns.setdefault((database, table), set()).add(name)
    return {
        table: columns.get((database or "default", name), set())
        for table, (database, name) in names.items()
    }


def _applied_steps(store: Database) -> set[str]:
    try:
        return set(store.query("SELECT DISTINCT step FROM otel.ltrain_migrations")["step"])
    except QueryFailed as error:
        if error.table_missing:
            return set()
        raise


def _is_concurrent_change(error: BaseException) -> bool:
    return isinstance(error, QueryFailed) and error.code in CONCURRENT_CHANGE_CODES


def _record_step(store: Database, step: str, number: int) -> None:
    store.command(
        "INSERT INTO otel.ltrain_migrations (step, version, program) "
        f"VALUES ('{step}', {number}, '{program_version()}')"
    )


@retry(
    retry=retry_if_exception(_is_concurrent_change),
    stop=stop_after_attempt(MAX_ATTEMPTS),
    wait=wait_exponential(FIRST_WAIT),
    reraise=True,
)
def _run_statement(store: Database, statement: str) -> None:
    store.command(statement)


def program_version() -> str:
    """Return the version of this ltrain."""
    try:
        return version("ltrain")
    except PackageNotFoundError:
        return "unknown"
