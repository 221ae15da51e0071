"""A store copied and brought back, by ClickHouse itself, while it is in use.

ClickHouse writes below a folder that its configuration allows, `backups` in a folder of ours. A
copy that comes back gives rows, nothing else: they are restored into tables of our own making in a
database of their own, checked there, and only then become the store's. Views are made by migration.
"""

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ltrain_collector import schema
from ltrain_collector.copies import bring, pack, sum_up
from ltrain_collector.engine import BACKUPS, literal
from ltrain_collector.errors import BadBackup, QueryFailed, StoreNewer
from ltrain_collector.sender import Sender
from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_instrument.private import OWNER_ONLY, make_private

STEPS = "otel.ltrain_migrations"
MADE = tuple(table for signal in schema.SIGNALS.values() for table in signal.made)
TABLES = (*schema.WRITTEN, *MADE, STEPS)
"""What a copy may bring; the last is only read."""

KEY = re.compile(r"\bENGINE = (.*?)(?: TTL .*| SETTINGS .*)?$", re.S)
"""Of a table's SQL what decides how its rows lie on disk."""

LONGEST_SQL = 1 << 20

OURS = re.compile(r"ltrain(?:-|_restore_)(\d+)")
"""A folder or a database that a backup or a restore works in, named by when it began."""
LONGEST = 24 * 3600 * 10**9
"""Nanoseconds that one may take; what is older was left by one that was killed."""

RESOURCE = "ResourceAttributes"
SENDER = f"mapUpdate({RESOURCE}, map(toLowCardinality('{attributes.SENDER}'), '{Sender.IMPORT}'))"
"""The attributes of a resource, sent by a copy."""


def backup(store: Store, target: Path) -> int:
    """Write the database `otel` to a new folder, or to a file where `target` ends in .tar.

    Returns the number of files.

    Raises:
        BadBackup: when it cannot be written, or is not whole.
    """
    if target.exists():
        raise BadBackup(f"{target} is there already. Name a new folder, or a new file *.tar.")
    made = _folder(store) / f"ltrain-{time.time_ns()}"
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        store.command(f"BACKUP DATABASE otel TO File({literal(str(made))})")
        count = sum_up(made)
        make_private(target.parent)
        if target.suffix == ".tar":
            pack(made, part)
            part.rename(target)
        else:
            made.chmod(OWNER_ONLY)
            shutil.move(made, target)
    except (QueryFailed, OSError) as error:
        raise BadBackup(f"The store {store.name} was not copied to {target}: {error}") from error
    finally:
        _remove(made)
        part.unlink(missing_ok=True)
    return count


def restore(store: Store, source: Path, *, trusted: bool = False) -> int:
    """Bring a copy's rows back into a store that holds nothing; returns the number of spans.

    Args:
        trusted: keep the senders that the copy names; else all are of `import`.

    Raises:
        BadBackup: when there is no whole copy, or the store is not empty.
        StoreNewer: when a newer program made it.
    """
    if there := held(store):
        raise BadBackup(
            f"The store {store.name} holds {there}; a copy goes into an empty one only. "
            "Name another with --store chdb:///new/folder."
        )
    inside = _folder(store)
    copy = inside / f"ltrain-{time.time_ns()}"
    try:
        bring(source, copy)
        store.migrate()
        tables = _tables(store, source, copy)
        with _staged(store, tables) as database:
            _fill(store, source, copy, database, tables)
            for statement in _taking(database, tables, trusted):
                store.command(statement)
    except (QueryFailed, OSError) as error:
        if isinstance(error, BadBackup):
            raise
        there = held(store)
        partly = f" The store holds {there} of it: restore into another." if there else ""
        raise BadBackup(f"{source} was not restored into {store.name}: {error}{partly}") from error
    finally:
        _remove(copy)
    return int(store.query("SELECT count() AS n FROM otel.spans")["n"].item())


def _taking(database: str, tables: list[str], trusted: bool) -> Iterator[str]:
    """Yield the statements by which checked rows become the store's."""
    for table in tables:
        own = f"{database}.{table.partition('.')[2]}"
        if trusted and table != STEPS:
            yield f"ALTER TABLE {table} ATTACH PARTITION ALL FROM {own}"
        elif table in schema.WRITTEN:
            # what is computed on insert is made anew; so are the tables that are filled from these
            columns = schema.WRITTEN[table]
            values = ", ".join(SENDER if name == RESOURCE else f"`{name}`" for name in columns)
            yield (
                f"INSERT INTO {schema.into(table)} SELECT {values} FROM {own} FINAL "
                "SETTINGS max_partitions_per_insert_block = 0"
            )


def held(store: Store) -> str:
    """Return how many records of each signal a store holds; '' where there are none."""
    counts: Counter[str] = Counter()
    for name, signal in schema.SIGNALS.items():
        with suppress(QueryFailed):  # it has no tables yet
            rows = store.query(f"SELECT count() AS n FROM {signal.table}")["n"].item()
            counts[RECORDS.get(name, "data points")] += int(rows)
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


RECORDS = {"traces": "spans", "logs": "log records"}


def _tables(store: Store, source: Path, copy: Path) -> list[str]:
    """Return the tables of ours that a copy has, each with its rows in our order.

    Raises:
        BadBackup: when there is none, or one that ltrain did not make.
    """
    found = []
    for table in TABLES:
        path = copy / "metadata" / f"{table.replace('.', '/')}.sql"
        if not path.is_file():
            continue
        with path.open(errors="replace") as file:
            theirs = _key(file.read(LONGEST_SQL))
        database, _, name = table.partition(".")
        sql = "SELECT create_table_query AS q FROM system.tables WHERE database = {d:String} "
        rows = store.query(f"{sql} AND name = {{n:String}}", {"d": database, "n": name})
        if theirs != _key(rows["q"].item()):
            raise BadBackup(
                f"{source} is refused: ltrain did not make its table {table}. Bring it back with "
                "ClickHouse's own RESTORE, and read it with `ltrain store migrate --traces`."
            )
        found.append(table)
    if not found:
        raise BadBackup(f"{source} is refused: it has no table of a store.")
    return found


def _key(sql: str) -> str:
    found = KEY.search(" ".join(sql.split()))
    return found[1] if found else ""


@contextmanager
def _staged(store: Store, tables: list[str]) -> Iterator[str]:
    """Yield a database with empty tables like ours, which is dropped at the end."""
    database = f"ltrain_restore_{time.time_ns()}"
    store.command(f"CREATE DATABASE {database}")
    try:
        for table in tables:
            store.command(f"CREATE TABLE {database}.{table.partition('.')[2]} AS {table}")
        yield database
    finally:
        store.command(f"DROP DATABASE {database} SYNC")


def _fill(store: Store, source: Path, copy: Path, database: str, tables: list[str]) -> None:
    """Restore the rows and check them.

    Raises:
        BadBackup: when a file is damaged.
        StoreNewer: when a newer program made the copy.
    """
    wanted = ", ".join(f"TABLE {one} AS {database}.{one.partition('.')[2]}" for one in tables)
    store.command(
        f"RESTORE {wanted} FROM File({literal(str(copy))}) SETTINGS allow_different_table_def = 1"
    )
    for table in tables:
        own = f"{database}.{table.partition('.')[2]}"
        sql = f"CHECK TABLE {own} SETTINGS check_query_single_value_result = 0"
        for line in b"".join(store.export(sql, "TSV")).decode().splitlines():
            part, passed, why = (*line.split("\t"), "", "")[:3]
            if passed == "0":
                raise BadBackup(
                    f"{source} is damaged: part {part} of {table} is not as ClickHouse wrote it "
                    f"({why[:200]}). Nothing was restored; take another copy."
                )
    if STEPS in tables:
        steps = store.query(f"SELECT DISTINCT step FROM {database}.{STEPS.partition('.')[2]}")
        if unknown := sorted({*steps["step"]} - {*schema.steps(), schema.VIEWS}):
            raise StoreNewer(
                f"{source} was made by a newer ltrain (steps {', '.join(unknown)[:200]}). Upgrade "
                "this one: pip install --upgrade ltrain."
            )


def _sweep(store: Store, folder: Path) -> None:
    """Remove what a backup or a restore left that was killed long ago."""
    names = store.query("SELECT name FROM system.databases")["name"]
    for database in filter(_left, names):
        store.command(f"DROP DATABASE {database} SYNC")
    for path in folder.iterdir():
        if _left(path.name):
            _remove(path)


def _left(name: str) -> bool:
    found = OURS.fullmatch(name)
    return found is not None and int(found[1]) < time.time_ns() - LONGEST


def _folder(store: Store) -> Path:
    """Return the folder that the store's engine may write copies to, without old leftovers.

    Raises:
        BadBackup: when it is on another machine.
    """
    path = Path(str(store.query("SELECT path FROM system.disks LIMIT 1")["path"].item())) / BACKUPS
    try:
        make_private(path)
    except OSError as error:
        raise BadBackup(
            f"The store {store.name} keeps its files in {path.parent}, which is not here or not "
            f"ours to write: {error.strerror}. Copy a ClickHouse server with its own BACKUP."
        ) from error
    _sweep(store, path)
    return path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
