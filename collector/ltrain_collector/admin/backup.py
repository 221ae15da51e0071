"""Back up a store and restore it, with ClickHouse's own BACKUP and RESTORE, while it is in use.

ClickHouse writes to a folder that its configuration allows: `backups` in the store's folder. A
backup restores rows and nothing else: into tables that ltrain creates in a separate database, where
they are checked before they are moved into the store. A migration creates the views.
"""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ltrain_collector import schema
from ltrain_collector.access import Sender
from ltrain_collector.admin.archive import import_backup, write_checksums, write_tar
from ltrain_collector.errors import BadBackup, QueryFailed, StoreNewer
from ltrain_collector.signals import SIGNALS, TABLES
from ltrain_collector.store import BACKUPS, Store, quote_literal
from ltrain_instrument import attributes
from ltrain_instrument.files import OWNER_ONLY, make_private, move_into_place, temporary_sibling
from ltrain_instrument.installation import upgrade_advice

STEPS_TABLE = "otel.ltrain_migrations"
DERIVED_TABLES = tuple(name for table in TABLES.values() for name in table.derived)
RESTORED_TABLES = (*TABLES, *DERIVED_TABLES, STEPS_TABLE)
"""The tables that are restored from a backup; the last one is only read."""

STORAGE_CLAUSE = re.compile(r"\bENGINE = (.*?)(?: TTL .*| SETTINGS .*)?$", re.S)
"""The part of a table's SQL that decides how its rows are stored."""

MAX_SQL_CHARACTERS = 1 << 20

WORK_NAME = re.compile(r"ltrain(?:-|_restore_)(\d+)")
"""The name of a temporary folder or database, with the time of its creation in nanoseconds."""
MAX_DURATION = 24 * 3600 * 10**9
"""Nanoseconds that a backup or restore can take; older leftovers are from a killed process."""

RESOURCE = "ResourceAttributes"
IMPORTED_RESOURCE = (
    f"mapUpdate({RESOURCE}, map(toLowCardinality('{attributes.SENDER}'), '{Sender.IMPORT}'))"
)
"""SQL of a resource's attributes with the sender `import`."""


def backup(store: Store, target: Path) -> int:
    """Write the database `otel` to a new folder, or to one file if `target` ends in .tar.

    Return the number of files.

    Raises:
        BadBackup: it cannot be written, or is incomplete.
    """
    if target.exists():
        raise BadBackup(f"{target} already exists. Name a new folder, or a new file *.tar.")
    made = _backup_folder(store) / f"ltrain-{time.time_ns()}"
    try:
        store.command(f"BACKUP DATABASE otel TO File({quote_literal(str(made))})")
        count = write_checksums(made)
        with temporary_sibling(target) as draft:
            if target.suffix == ".tar":
                write_tar(made, draft)
            else:
                made.chmod(OWNER_ONLY)
                shutil.move(made, draft)
            move_into_place(draft, target)
    except (QueryFailed, OSError) as error:
        raise BadBackup(
            f"The store {store.name} could not be backed up to {target}: {error}"
        ) from error
    finally:
        _remove(made)
    return count


def restore(store: Store, source: Path, *, trusted: bool = False) -> int:
    """Restore the rows of a backup into an empty store; return the number of spans.

    Args:
        trusted: keep the senders that the backup names; otherwise the sender of all is `import`.

    Raises:
        BadBackup: the backup is incomplete or invalid, or the store is not empty.
        StoreNewer: a newer ltrain wrote the backup.
    """
    if records := describe_records(store):
        raise BadBackup(
            f"The store {store.name} holds {records}; a backup is restored only into an empty "
            "store. Name another with --store chdb:///new/folder."
        )
    inside = _backup_folder(store)
    copy = inside / f"ltrain-{time.time_ns()}"
    try:
        import_backup(source, copy)
        store.migrate()
        tables = _backup_tables(store, source, copy)
        with _staging_database(store, tables) as database:
            _restore_rows(store, source, copy, database, tables)
            for statement in _insert_statements(database, tables, trusted):
                store.command(statement)
    except (QueryFailed, OSError) as error:
        if isinstance(error, BadBackup):
            raise
        records = describe_records(store)
        partly = f" The store holds {records} of it: restore into another." if records else ""
        raise BadBackup(
            f"{source} could not be restored into {store.name}: {error}{partly}"
        ) from error
    finally:
        _remove(copy)
    return int(store.query("SELECT count() AS n FROM otel.spans")["n"].item())


def _insert_statements(database: str, tables: list[str], trusted: bool) -> Iterator[str]:
    """Yield the statements that move the checked rows into the store."""
    for table in tables:
        own = f"{database}.{table.partition('.')[2]}"
        if trusted and table != STEPS_TABLE:
            yield f"ALTER TABLE {table} ATTACH PARTITION ALL FROM {own}"
        elif table in TABLES:
            # the insert computes ltrain's columns and fills the derived tables again
            values = ", ".join(
                IMPORTED_RESOURCE if name == RESOURCE else f"`{name}`"
                for name in TABLES[table].columns
            )
            yield (
                f"INSERT INTO {schema.insert_target(table)} SELECT {values} FROM {own} FINAL "
                "SETTINGS max_partitions_per_insert_block = 0"
            )


def describe_records(store: Store) -> str:
    """Return how many records of each signal a store holds, e.g. "3 spans"; '' if it is empty."""
    found: list[str] = []
    for signal in SIGNALS:
        records = 0
        for table in signal.tables:
            with suppress(QueryFailed):  # the store has no tables yet
                rows = store.query(f"SELECT count() AS n FROM {table.name}")["n"].item()
                records += int(rows)
        if records:
            found.append(signal.quantity_of(records))
    return ", ".join(found)


def _backup_tables(store: Store, source: Path, copy: Path) -> list[str]:
    """Return ltrain's tables that a backup has, all with ltrain's engine, key and partitions."""
    owned: list[str] = []
    for table in RESTORED_TABLES:
        path = copy / "metadata" / f"{table.replace('.', '/')}.sql"
        if not path.is_file():
            continue
        with path.open(errors="replace") as file:
            clause = _storage_clause(file.read(MAX_SQL_CHARACTERS))
        database, _, name = table.partition(".")
        sql = "SELECT create_table_query AS q FROM system.tables WHERE database = {d:String} "
        rows = store.query(f"{sql} AND name = {{n:String}}", {"d": database, "n": name})
        if clause != _storage_clause(rows["q"].item()):
            raise BadBackup(
                f"{source} is refused: ltrain did not create its table {table}. Restore it with "
                "ClickHouse's own RESTORE, and read it with `ltrain store migrate --traces`."
            )
        owned.append(table)
    if not owned:
        raise BadBackup(
            f"{source} is refused: it has none of the tables {', '.join(RESTORED_TABLES)}."
        )
    return owned


def _storage_clause(sql: str) -> str:
    match = STORAGE_CLAUSE.search(" ".join(sql.split()))
    return match[1] if match else ""


@contextmanager
def _staging_database(store: Store, tables: list[str]) -> Iterator[str]:
    """Yield a temporary database with empty copies of the tables; drop it at the end."""
    database = f"ltrain_restore_{time.time_ns()}"
    store.command(f"CREATE DATABASE {database}")
    try:
        for table in tables:
            store.command(f"CREATE TABLE {database}.{table.partition('.')[2]} AS {table}")
        yield database
    finally:
        store.command(f"DROP DATABASE {database} SYNC")


def _restore_rows(store: Store, source: Path, copy: Path, database: str, tables: list[str]) -> None:
    """Restore the rows into `database` and check them."""
    wanted = ", ".join(f"TABLE {one} AS {database}.{one.partition('.')[2]}" for one in tables)
    store.command(
        f"RESTORE {wanted} FROM File({quote_literal(str(copy))}) "
        "SETTINGS allow_different_table_def = 1"
    )
    for table in tables:
        own = f"{database}.{table.partition('.')[2]}"
        sql = f"CHECK TABLE {own} SETTINGS check_query_single_value_result = 0"
        for line in b"".join(store.export(sql, "TSV")).decode().splitlines():
            part, passed, why = (*line.split("\t"), "", "")[:3]
            if passed == "0":
                raise BadBackup(
                    f"{source} is damaged: part {part} of {table} changed after ClickHouse wrote "
                    f"it ({why[:200]}). Nothing was restored; use another backup."
                )
    if STEPS_TABLE in tables:
        steps = store.query(f"SELECT DISTINCT step FROM {database}.{STEPS_TABLE.partition('.')[2]}")
        if unknown := sorted({*steps["step"]} - {*schema.steps(), schema.VIEWS}):
            raise StoreNewer(
                f"A newer ltrain wrote {source} (steps {', '.join(unknown)[:200]}). "
                f"{upgrade_advice()}"
            )


def _remove_leftovers(store: Store, folder: Path) -> None:
    """Remove folders and databases that a killed backup or restore left behind."""
    names = store.query("SELECT name FROM system.databases")["name"]
    for database in filter(_is_leftover, names):
        store.command(f"DROP DATABASE {database} SYNC")
    for path in folder.iterdir():
        if _is_leftover(path.name):
            _remove(path)


def _is_leftover(name: str) -> bool:
    match = WORK_NAME.fullmatch(name)
    return match is not None and int(match[1]) < time.time_ns() - MAX_DURATION


def _backup_folder(store: Store) -> Path:
    """Return the folder that the store's engine can write backups to, without old leftovers."""
    path = Path(str(store.query("SELECT path FROM system.disks LIMIT 1")["path"].item())) / BACKUPS
    try:
        make_private(path)
    except OSError as error:
        raise BadBackup(
            f"The store {store.name} keeps its files in {path.parent}, which this user cannot "
            f"write to on this machine: {error.strerror}. Back up a ClickHouse server with its own "
            "BACKUP."
        ) from error
    _remove_leftovers(store, path)
    return path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
