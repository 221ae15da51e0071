"""chDB, the ClickHouse that runs inside this process: the one module that touches it.

A process holds one folder at a time and a folder has one process. Each query gets a session of its
own, so settings, parameters and `USE` never leak from one to the next. The engine's threads do not
survive a fork: children are spawned.
"""

import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import adbc_driver_chdb
import adbc_driver_manager
import chdb
import pyarrow as pa

from ltrain_collector import folder
from ltrain_collector.errors import MEND, QueryFailed, code_of
from ltrain_collector.formats import parts
from ltrain_instrument.errors import LtrainError

OPTIONS = {
    "max_server_memory_usage": 4 << 30,
    "mark_cache_size": 128 << 20,
    "primary_index_cache_size": 128 << 20,
    "background_pool_size": 2,
    "background_schedule_pool_size": 2,
    "background_schedule_pool_initial_size": 2,
}
"""ClickHouse's own would take nine tenths of the memory and caches of 5 GB; it runs beside vLLM and
a trainer. Two merge threads are its least."""

logger = logging.getLogger(__name__)

BROKEN = """SELECT concat(database, '.', table), count(), any(path) FROM system.detached_parts
WHERE startsWith(reason, 'broken') GROUP BY 1"""

BACKUPS = "backups"
"""The folder below the store's own that the engine may write copies to, and read them from."""

LONG = 1 << 16
"""Characters of a parameter; ClickHouse reads statements of 256 KiB unless told otherwise."""

FROM_MEMORY = (
    "async_insert = 0, input_format_parallel_parsing = 0, storage_file_read_method = 'mmap', "
    "optimize_on_insert = 0"
)
"""An insert whose rows are in memory: no copy of them, and no second thread. Copies of a row are
left to merges and readers, who meet those of other inserts anyway: a fifth less CPU."""

SPARE = 32 << 20
"""Bytes of the file that is kept between inserts."""


class Engine:
    """An open folder; usable from any thread."""

    def __init__(self, directory: Path) -> None:
        """Open `directory`, made where it is missing.

        Raises:
            StoreInUse: when another process has it, or this process has another.
            StoreUnusable: when it cannot be made, read or written.
        """
        folder.check(directory)
        allowed = {"backups.allowed_path": directory / BACKUPS}
        options = "&".join(f"{name}={value}" for name, value in (OPTIONS | allowed).items())
        try:
            self._root = _connect(f"{directory}?{options}")
        except RuntimeError as error:
            raise folder.refusal(directory, str(error)) from error
        self._adbc: Any = adbc_driver_manager.AdbcDatabase(
            driver=adbc_driver_chdb.driver_path(),
            entrypoint=adbc_driver_chdb.dbapi.ENTRYPOINT,
            uri=f"chdb://{directory}",
        )
        self._directory = directory
        self.presence = folder.Presence(directory)
        self._closed = threading.Event()
        self._spare: list[IO[bytes]] = []
        self._say_what_is_broken()

    def close(self) -> None:
        """Close the folder; another process may then open it."""
        if not self._closed.is_set():
            self._closed.set()
            self._adbc.close()
            self._root.close()
            for file in self._spare:
                file.close()

    def _say_what_is_broken(self) -> None:
        """Warn of what ClickHouse set aside without a word when it opened the folder."""
        with self.session({}) as connection:
            found = connection.query(BROKEN, "TSV").bytes().decode()
        for line in found.splitlines():
            table, parts, example = line.split("\t")
            logger.warning(
                "ltrain: %s parts of %s in the store %s are damaged and were set aside: their rows "
                "are not read. %s To go on without them and this warning, remove folders like %s.",
                *(parts, table, self._directory, MEND, example),
            )

    @contextmanager
    def session(
        self, settings: Mapping[str, str], database: str = "default", before: Iterable[str] = ()
    ) -> Iterator[Any]:
        """Give a chDB connection with these settings, for one query, after `before` was run."""
        connection = _connect(str(self._directory))
        try:
            with query_errors():
                for statement in (*before, *preamble(settings, database)):
                    connection.query(statement)
                yield connection
        finally:
            connection.close()

    def connect(self, statements: Iterable[str]) -> Any:
        """Give a connection that keeps what `statements` did; the caller closes it."""
        connection = _connect(str(self._directory))
        try:
            with query_errors():
                for statement in statements:
                    connection.query(statement)
        except BaseException:
            connection.close()
            raise
        return connection

    def command(self, sql: str) -> None:
        """Run a statement that gives no rows."""
        with self.session({}) as connection:
            connection.query(sql)

    @contextmanager
    def batches(
        self,
        sql: str,
        settings: Mapping[str, str],
        database: str = "default",
        before: Iterable[str] = (),
    ) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """Give the result's schema and its batches as they are made, in bounded memory."""
        with (
            query_errors(),
            adbc_driver_manager.AdbcConnection(self._adbc) as connection,
        ):
            for statement in (*before, *preamble(settings, database)):
                with _executed(connection, statement):
                    pass
            with _executed(connection, sql) as reader:
                yield reader.schema, iter(reader)

    def formatted(
        self,
        sql: str,
        form: str,
        settings: Mapping[str, str],
        database: str = "default",
        before: Iterable[str] = (),
    ) -> Iterator[bytes]:
        """Give the result as ClickHouse writes it; in parts where the format allows it."""
        array = "json_array_of_rows" in f"{sql}{settings}"
        with self.session(settings, database, before) as connection:
            yield from parts(connection, sql, form, whole=array)

    def insert(
        self,
        into: str,
        form: str,
        chunks: Iterable[bytes],
        settings: Mapping[str, str] | None = None,
        database: str = "default",
    ) -> int:
        """Insert `chunks` of format `form`; returns once they are readable, with their row count.

        `into` is all before FORMAT: `INSERT INTO t (a, b) SETTINGS x = 1`.
        """
        with self.session(settings or {}, database) as connection:
            return self.insert_over(connection, into, form, chunks)

    def insert_over(self, connection: Any, into: str, form: str, chunks: Iterable[bytes]) -> int:
        """Insert over an open connection; all or nothing.

        Raises:
            StoreGone: when the folder was removed; the rows are then in no store.
        """
        self.presence.check()
        # chDB's own streaming insert reports success where the disk is full; a file does not lie
        with self._file(chunks) as path:
            table, *own = re.split(r"(?i)\sSETTINGS\s", into, maxsplit=1)
            options = ", ".join((*(each.strip() for each in own), FROM_MEMORY))
            source = f"FROM INFILE {literal(path)} COMPRESSION 'none'"
            sql = f"{table} {source} SETTINGS {options} FORMAT {form}"
            rows = int(connection.query(sql).rows_read())
        self.presence.check()
        return rows

    @contextmanager
    def _file(self, chunks: Iterable[bytes]) -> Iterator[str]:
        """Give the path of a file in memory; one is kept, since fresh pages cost as a copy does."""
        try:
            file = self._spare.pop()
        except IndexError:
            file = open(os.memfd_create("rows"), "wb")  # noqa: SIM115
        try:
            file.seek(0)
            file.writelines(chunks)
            file.truncate()
            yield f"/proc/self/fd/{file.fileno()}"
        finally:
            file.truncate(SPARE)
            if self._spare or self._closed.is_set():
                file.close()
            else:
                self._spare.append(file)


@contextmanager
def _executed(connection: Any, sql: str) -> Iterator[pa.RecordBatchReader]:
    # ADBC's own layer below its DB-API, which imports pandas where that is installed
    with adbc_driver_manager.AdbcStatement(connection) as statement:
        statement.set_sql_query(sql)
        handle, _ = statement.execute_query()
        with pa.RecordBatchReader.from_stream(handle) as reader:
            yield reader


def _connect(address: str) -> Any:
    connect: Any = chdb.connect
    return connect(address)


def literal(value: str) -> str:
    """Quote a string for SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0")
    return f"'{escaped}'"


def preamble(settings: Mapping[str, str], database: str) -> Iterator[str]:
    """Give the statements that set `settings` and choose `database`."""
    if database != "default":
        yield f"USE `{database.replace('`', '')}`"
    if any(len(value) > LONG for value in settings.values()):
        yield f"SET max_query_size={1 << 30}"
    for name in sorted(settings, key=lambda name: name == "readonly"):  # after it, no SET is left
        if not re.fullmatch(r"\w+", name):
            raise QueryFailed(f"Code: 115. DB::Exception: Bad setting name {name!r}", 115)
        yield f"SET {name}={literal(settings[name])}"


@contextmanager
def query_errors() -> Iterator[None]:
    """Let what the engine raises be a `QueryFailed` with ClickHouse's own code."""
    try:
        yield
    # chdb raises ChdbError and RuntimeError, ADBC its own tree, Arrow an OSError in mid-stream
    except (RuntimeError, adbc_driver_manager.Error, OSError) as error:
        if isinstance(error, LtrainError):
            raise
        message = str(error)
        start = max(message.find("Code: "), 0)
        raise QueryFailed(message[start:].strip(), code_of(message)) from error
