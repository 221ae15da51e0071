"""Migrate a store to the tables and views of this ltrain: forward only, any number of times.

A step that runs again changes nothing, so two programs can migrate a store at the same time, and
the next migration finishes one that was killed. A store of 0.1.0 has no record of steps: all steps
run and change nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

import polars as pl
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_exponential

from ltrain_collector import schema
from ltrain_collector.errors import BadTable, QueryFailed, StoreNewer
from ltrain_collector.signals import TABLES, TRACES, Table
from ltrain_instrument.installation import upgrade_advice

CONCURRENT_CHANGE_CODES = (57, 81, 82, 517, 529)
"""ClickHouse error codes of a conflict with another migration that makes the same change."""

MAX_ATTEMPTS = 8

FIRST_WAIT = 0.05
"""Seconds before the second attempt; each further wait is twice as long."""


class Database(Protocol):
    """What a migration needs of a store."""

    name: str

    def query(self, sql: str, params: Mapping[str, object] | None = None) -> pl.DataFrame: ...
    def command(self, sql: str) -> None: ...


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """What a migration changed."""

    steps: tuple[str, ...]
    """Steps that this store did not have."""
    version: int
    """The number of steps that this program knows."""


def migrate(store: Database, tables: Mapping[str, str]) -> MigrationResult:
    """Run the missing steps, then create the views again.

    Args:
        tables: tables that an exporter created, by the key of ltrain's own.

    Raises:
        StoreNewer: a newer ltrain has changed the store.
        BadTable: a table of `tables` does not exist.
    """
    _refuse_newer(store)
    for statement in schema.read_statements(schema.DATABASE):
        _run_statement(store, statement)
    tables = _add_exporter_tables(store, tables)
    applied = _applied_steps(store)
    required = [schema.DATABASE]
    for table in TABLES.values():
        required += table.steps if _is_owned(store, table, tables) else ()
    required.append(schema.RENAMED_VIEWS)
    new = tuple(step for step in dict.fromkeys(required) if step not in applied)
    for step in new:
        for statement in schema.read_statements(step):
            _run_statement(store, statement)
        _record_step(store, step, schema.steps().index(step) + 1)
    for table in TABLES.values():
        source = tables.get(table.key, table.name)
        for view in schema.view_files(table, _has_own_columns(store, source)):
            for statement in schema.read_statements(view, table=source, view=table.view):
                _run_statement(store, statement)
    for view in schema.USER_VIEWS:
        for statement in schema.read_statements(view):
            _run_statement(store, statement)
    newest = len(schema.steps())
    if int(store.query(schema.VERSION).item()) != newest:
        _record_step(store, schema.VIEWS, newest)
    return MigrationResult(new, newest)


def _refuse_newer(store: Database) -> None:
    known = {*schema.steps(), schema.VIEWS}
    if unknown := sorted(_applied_steps(store) - known):
        raise StoreNewer(
            f"A newer ltrain changed the store {store.name} (steps {', '.join(unknown)}), and "
            f"ltrain {program_version()} does not know these steps. {upgrade_advice()}"
        )


def _is_owned(store: Database, table: Table, tables: Mapping[str, str]) -> bool:
    """Return whether ltrain creates and changes a table.

    Raises:
        BadTable: the named table does not exist.
    """
    source = tables.get(table.key)
    if source is None:
        return _columns(store, table.name) == set() or _has_own_columns(store, table.name)
    if not _columns(store, source):
        raise BadTable(
            f"There is no table {source} in the store {store.name}. Name the one that the "
            f"collector's exporter writes {table.key} to, e.g. {table.name}."
        )
    return False


def _has_own_columns(store: Database, table: str) -> bool:
    return schema.OWN_COLUMN in _columns(store, table)


def _add_exporter_tables(store: Database, tables: Mapping[str, str]) -> dict[str, str]:
    """Add the exporter's other tables, which are in the database of its traces."""
    spans = TRACES.tables[0]
    database = tables.get(spans.key, spans.name).rpartition(".")[0]
    if database == "otel":
        return dict(tables)
    exporter_tables = {
        table.key: f"{database or 'default'}.{table.name.rpartition('.')[2]}"
        for table in TABLES.values()
        if table.key not in tables
    }
    return {
        **tables,
        **{key: table for key, table in exporter_tables.items() if _columns(store, table)},
    }


def _columns(store: Database, table: str) -> set[str]:
    database, _, name = table.rpartition(".")
    columns = store.query(
        "SELECT name FROM system.columns WHERE database = {database:String} "
        "AND table = {name:String}",
        {"database": database or "default", "name": name},
    )
    return set(columns["name"])


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
