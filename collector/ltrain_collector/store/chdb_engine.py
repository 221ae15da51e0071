"""chDB, the ClickHouse that runs inside this process: the only module that uses it.

A process opens one folder at a time, and one process opens a folder. Each query has a session of
its own, so settings, parameters and `USE` never affect the next query. The engine's threads do not
survive a fork: child processes must be spawned.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import adbc_driver_chdb
import adbc_driver_manager
import pyarrow as pa

from ltrain_collector.errors import RESTORE_HINT, QueryFailed, code_of
from ltrain_collector.http import require_descriptors
from ltrain_collector.store import folder
from ltrain_collector.store.formats import stream_result
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.quantity import quantity

ENGINE_OPTIONS = {
    "max_server_memory_usage": 4 << 30,
    "mark_cache_size": 128 << 20,
    "primary_index_cache_size": 128 << 20,
    "background_pool_size": 2,
    "background_schedule_pool_size": 2,
    "background_schedule_pool_initial_size": 2,
}
"""ClickHouse's defaults take nine tenths of the memory and 5 GB of caches; this engine runs beside
vLLM and a trainer. Two merge threads are the minimum."""

logger = logging.getLogger(__name__)

BROKEN_PARTS = """SELECT concat(database, '.', table), count(), any(path) FROM system.detached_parts
WHERE startsWith(reason, 'broken') GROUP BY 1"""

BACKUPS = "backups"
"""The subfolder of the store in which the engine may write and read backups."""

LONG_PARAMETER = 1 << 16
"""Characters of a parameter beyond which `max_query_size` is raised: its default is 256 KiB."""

INSERT_SETTINGS = (
    "async_insert = 0, input_format_parallel_parsing = 0, storage_file_read_method = 'mmap', "
    "optimize_on_insert = 0"
)
"""Settings of an insert from memory: no copy of the rows and no second thread. Merges and readers
remove duplicates within an insert, as they do across inserts: a fifth less CPU."""

TOTAL_MEMORY_MESSAGE = "(total) memory limit exceeded"
"""Part of ClickHouse's message when the whole engine, not one query, exceeds its memory."""

READER_TAG = "ltrain:reader:"
"""The start of `log_comment` of a query that may be ended when ingest needs its memory."""

END_LARGEST_READER = f"""KILL QUERY WHERE query_id IN (
    SELECT query_id FROM system.processes WHERE startsWith(Settings['log_comment'], '{READER_TAG}')
    ORDER BY memory_usage DESC LIMIT 1
) ASYNC"""

MEMORY_WAIT = 5.0
"""Seconds that an insert waits for the memory of the query that it ends. A query ends between two
of its steps, and one step of a function may take minutes."""
MEMORY_PAUSE = 0.1
"""Seconds between two attempts of such an insert."""

KEPT_FILE_BYTES = 32 << 20
"""Bytes of the memory file that stays allocated between inserts."""


class Engine:
    """An open folder; usable from any thread."""

    def __init__(self, directory: Path) -> None:
        """Open `directory`, and create it where it does not exist.

        Raises:
            StoreInUse: another process has it open, or this process has another folder open.
            StoreUnusable: it cannot be created, read or written.
            TooFewDescriptors: this process may open too few files.
        """
        require_descriptors()
        folder.check_folder(directory)
        allowed = {"backups.allowed_path": directory / BACKUPS}
        options = "&".join(f"{name}={value}" for name, value in (ENGINE_OPTIONS | allowed).items())
        try:
            self._root = _connect(f"{directory}?{options}")
        except RuntimeError as error:
            raise folder.open_error(directory, str(error)) from error
        self._adbc: Any = adbc_driver_manager.AdbcDatabase(
            driver=adbc_driver_chdb.driver_path(),
            entrypoint=adbc_driver_chdb.dbapi.ENTRYPOINT,
            uri=f"chdb://{directory}",
        )
        self.directory = directory
        """The folder."""
        self.presence = folder.Presence(directory)
        self._closed = threading.Event()
        self._insert_files: list[IO[bytes]] = []
        self._warn_about_broken_parts()

    def close(self) -> None:
        """Close the folder; another process can then open it."""
        if not self._closed.is_set():
            self._closed.set()
            self._adbc.close()
            self._root.close()
            for file in self._insert_files:
                file.close()

    def _warn_about_broken_parts(self) -> None:
        """Log the damaged parts that ClickHouse detaches without a message when it opens."""
        with self.session({}) as connection:
            broken = connection.query(BROKEN_PARTS, "TSV").bytes().decode()
        for line in broken.splitlines():
            table, count, example = line.split("\t")
            logger.warning(
                "ltrain: %s of %s in the store %s: ClickHouse detaches such parts and does not "
                "read their rows. %s To continue without them, remove folders like %s.",
                *(
                    quantity(int(count), "damaged part"),
                    table,
                    self.directory,
                    RESTORE_HINT,
                    example,
                ),
            )

    @contextmanager
    def session(
        self, settings: Mapping[str, str], database: str = "default", setup: Iterable[str] = ()
    ) -> Iterator[Any]:
        """Run `setup`, then yield a chDB connection with these settings, for one query."""
        connection = _connect(str(self.directory))
        try:
            with query_errors():
                for statement in (*setup, *setup_statements(settings, database)):
                    connection.query(statement)
                yield connection
        finally:
            connection.close()

    def connect(self, statements: Iterable[str]) -> Any:
        """Return a connection on which `statements` have run; the caller closes it."""
        connection = _connect(str(self.directory))
        try:
            with query_errors():
                for statement in statements:
                    connection.query(statement)
        except BaseException:
            connection.close()
            raise
        return connection

    def command(self, sql: str) -> None:
        """Run a statement that returns no rows."""
        with self.session({}) as connection:
            connection.query(sql)

    @contextmanager
    def batches(
        self,
        sql: str,
        settings: Mapping[str, str],
        database: str = "default",
        setup: Iterable[str] = (),
    ) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """Yield the schema of the result, and its batches in bounded memory."""
        with query_errors(), adbc_driver_manager.AdbcConnection(self._adbc) as connection:
            for statement in (*setup, *setup_statements(settings, database)):
                with _executed(connection, statement):
                    pass
            with _executed(connection, sql) as reader:
                yield reader.schema, iter(reader)

    def export(
        self,
        sql: str,
        form: str,
        settings: Mapping[str, str],
        database: str = "default",
        setup: Iterable[str] = (),
    ) -> Iterator[bytes]:
        """Yield the result in ClickHouse's format `form`, in parts where the format allows it."""
        array = "json_array_of_rows" in f"{sql}{settings}"
        with self.session(settings, database, setup) as connection:
            yield from stream_result(connection, sql, form, one_piece=array)

    def insert(
        self,
        into: str,
        form: str,
        chunks: Iterable[bytes],
        settings: Mapping[str, str] | None = None,
        database: str = "default",
    ) -> int:
        """Insert `chunks` of format `form`; return the number of rows once they can be read.

        Args:
            into: the statement before FORMAT, e.g. `INSERT INTO t (a, b) SETTINGS x = 1`.
        """
        with self.session(settings or {}, database) as connection:
            return self.insert_with(connection, into, form, chunks)

    def insert_first(self, into: str, form: str, chunks: Sequence[bytes]) -> int:
        """Insert as `insert` does; if memory is used up, first end the largest query of a reader.

        All queries together take at most the engine's memory, and ingest must not wait for them.

        Raises:
            QueryFailed: the insert fails, or there is no memory within `MEMORY_WAIT` seconds.
        """
        until = time.monotonic() + MEMORY_WAIT
        while True:
            try:
                return self.insert(into, form, chunks)
            except QueryFailed as error:
                if TOTAL_MEMORY_MESSAGE not in str(error) or time.monotonic() > until:
                    raise
            with suppress(QueryFailed):  # it takes memory, too; the next turn tries it again
                self.command(END_LARGEST_READER)
            time.sleep(MEMORY_PAUSE)

    def insert_with(self, connection: Any, into: str, form: str, chunks: Iterable[bytes]) -> int:
        """Insert all of `chunks`, or nothing, with an open connection.

        Raises:
            StoreGone: the folder was removed; the rows are not stored.
        """
        self.presence.check()
        # chDB's own streaming insert reports success when the disk is full; INFILE does not
        with self._insert_file(chunks) as path:
            table, *options_of_insert = re.split(r"(?i)\sSETTINGS\s", into, maxsplit=1)
            options = ", ".join((*(each.strip() for each in options_of_insert), INSERT_SETTINGS))
            source = f"FROM INFILE {quote_literal(path)} COMPRESSION 'none'"
            sql = f"{table} {source} SETTINGS {options} FORMAT {form}"
            rows = int(connection.query(sql).rows_read())
        self.presence.check()
        return rows

    @contextmanager
    def _insert_file(self, chunks: Iterable[bytes]) -> Iterator[str]:
        """Yield the path of a file in memory; it is reused: new pages cost as much as a copy."""
        try:
            file = self._insert_files.pop()
        except IndexError:
            file = open(os.memfd_create("rows"), "wb")  # noqa: SIM115
        try:
            file.seek(0)
            file.writelines(chunks)
            file.truncate()
            yield f"/proc/self/fd/{file.fileno()}"
        finally:
            file.truncate(KEPT_FILE_BYTES)
            if self._insert_files or self._closed.is_set():
                file.close()
            else:
                self._insert_files.append(file)


@contextmanager
def _executed(connection: Any, sql: str) -> Iterator[pa.RecordBatchReader]:
    # ADBC's own layer below its DB-API, which imports pandas where that is installed
    with adbc_driver_manager.AdbcStatement(connection) as statement:
        statement.set_sql_query(sql)
        handle, _ = statement.execute_query()
        with pa.RecordBatchReader.from_stream(handle) as reader:
            yield reader


def _connect(address: str) -> Any:
    # importing it takes 0.2 s, which a client of a server does not need
    import chdb

    connect: Any = chdb.connect
    return connect(address)


def quote_literal(value: str) -> str:
    """Quote a string for SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0")
    return f"'{escaped}'"


def setup_statements(settings: Mapping[str, str], database: str) -> Iterator[str]:
    """Yield the statements that apply `settings` and `database` to a session."""
    if database != "default":
        yield f"USE `{database.replace('`', '')}`"
    if any(len(value) > LONG_PARAMETER for value in settings.values()):
        yield f"SET max_query_size={1 << 30}"
    for name in sorted(settings, key=lambda name: name == "readonly"):  # it forbids a later SET
        if not re.fullmatch(r"\w+", name):
            raise QueryFailed(f"Code: 115. DB::Exception: Bad setting name {name!r}", 115)
        yield f"SET {name}={quote_literal(settings[name])}"


@contextmanager
def query_errors() -> Iterator[None]:
    """Convert errors of the engine to `QueryFailed` with ClickHouse's own code."""
    try:
        yield
    # chdb raises ChdbError and RuntimeError, ADBC its own tree, Arrow an OSError in mid-stream
    except (RuntimeError, adbc_driver_manager.Error, OSError) as error:
        if isinstance(error, LtrainError):
            raise
        message = str(error)
        start = max(message.find("Code: "), 0)
        raise QueryFailed(message[start:].strip(), code_of(message)) from error
