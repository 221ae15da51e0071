"""A store is brought to what this program needs: forward only, and as often as one likes.

Steps run again do nothing, so two programs may migrate a store at once, and one that is killed
leaves what the next one finishes. A store of 0.1.0 has no record of steps: all run, and find their
work done.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

import polars as pl

from ltrain_collector import schema
from ltrain_collector.errors import BadTable, QueryFailed, StoreNewer

BUSY = (57, 81, 82, 517, 529)
"""Another migration was in the midst of the same change: a name was taken, or not yet there."""

TRIES = 8


class Database(Protocol):
    """What is migrated."""

    name: str

    def query(self, sql: str, params: Mapping[str, object] | None = None) -> pl.DataFrame: ...
    def command(self, sql: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a migration did."""

    steps: tuple[str, ...]
    """That were new to this store."""
    version: int
    """The number of steps that this program knows."""


def migrate(store: Database, tables: Mapping[str, str]) -> Migrated:
    """Run the steps that are missing, then renew the views; `tables` are an exporter's, by signal.

    Raises:
        StoreNewer: when a newer program has changed the store.
        BadTable: when a table of `tables` is not there.
    """
    _refuse_newer(store)
    for statement in schema.statements(schema.DATABASE):
        _run(store, statement)
    tables = _beside(store, tables)
    done = _done(store)
    wanted = [schema.DATABASE]
    for name, signal in schema.SIGNALS.items():
        wanted += signal.steps if _owned(store, name, tables) else ()
    new = tuple(step for step in dict.fromkeys(wanted) if step not in done)
    for step in new:
        for statement in schema.statements(step):
            _run(store, statement)
        _record(store, step, schema.steps().index(step) + 1)
    for name, signal in schema.SIGNALS.items():
        read = tables.get(name, signal.table)
        form = "{}" if _marked(store, read) else "{}_exporter"
        for view in map(form.format, signal.views):
            for statement in schema.statements(view, table=read, view=signal.view):
                _run(store, statement)
    for view in schema.PEOPLE:
        for statement in schema.statements(view):
            _run(store, statement)
    newest = len(schema.steps())
    if int(store.query(schema.VERSION).item()) != newest:
        _record(store, schema.VIEWS, newest)
    return Migrated(new, newest)


def _refuse_newer(store: Database) -> None:
    known = {*schema.steps(), schema.VIEWS}
    if unknown := sorted(_done(store) - known):
        raise StoreNewer(
            f"The store {store.name} was changed by a newer ltrain (steps {', '.join(unknown)}); "
            f"this is ltrain {program()}, which does not know them. Upgrade it: "
            "pip install --upgrade ltrain."
        )


def _owned(store: Database, name: str, tables: Mapping[str, str]) -> bool:
    """Say whether a signal's table is ours to make and to change."""
    signal = schema.SIGNALS[name]
    if name not in tables:
        return _columns(store, signal.table) == set() or _marked(store, signal.table)
    if not _columns(store, tables[name]):
        raise BadTable(
            f"There is no table {tables[name]} in the store {store.name}. Name the one that the "
            f"collector's exporter writes {name} to, e.g. otel.{signal.table.partition('.')[2]}."
        )
    return False


def _marked(store: Database, table: str) -> bool:
    return schema.MARK in _columns(store, table)


def _beside(store: Database, tables: Mapping[str, str]) -> dict[str, str]:
    """Add the exporter's other tables, which stand in the database of its traces."""
    database = tables.get("traces", schema.TRACES).rpartition(".")[0]
    if database == "otel":
        return dict(tables)
    others = {
        name: f"{database or 'default'}.{signal.table.rpartition('.')[2]}"
        for name, signal in schema.SIGNALS.items()
        if name not in tables
    }
    return {**tables, **{name: table for name, table in others.items() if _columns(store, table)}}


def _columns(store: Database, table: str) -> set[str]:
    database, _, name = table.rpartition(".")
    found = store.query(
        "SELECT name FROM system.columns WHERE database = {database:String} "
        "AND table = {name:String}",
        {"database": database or "default", "name": name},
    )
    return set(found["name"])


def _done(store: Database) -> set[str]:
    try:
        return set(store.query("SELECT DISTINCT step FROM otel.ltrain_migrations")["step"])
    except QueryFailed as error:
        if error.table_missing:
            return set()
        raise


def _record(store: Database, step: str, number: int) -> None:
    store.command(
        "INSERT INTO otel.ltrain_migrations (step, version, program) "
        f"VALUES ('{step}', {number}, '{program()}')"
    )


def _run(store: Database, statement: str) -> None:
    for attempt in range(TRIES):
        try:
            store.command(statement)
            return
        except QueryFailed as error:
            if error.code not in BUSY or attempt == TRIES - 1:
                raise
        time.sleep(0.05 * 2**attempt)


def program() -> str:
    """Give the version of this ltrain."""
    try:
        return version("ltrain")
    except PackageNotFoundError:
        return "unknown"
