"""The trace store's Python API, for a folder and for a server.

Both return the same frames: strings are `pl.String`, `DateTime64` is `pl.Datetime` in UTC,
`DateTime` is `pl.UInt32` (ClickHouse's own Arrow rule), `Map(K, V)` is `pl.Map(K, V)`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Protocol, Self

import polars as pl
import pyarrow as pa

from ltrain_collector import schema
from ltrain_collector.dsn import PORT, Folder, Server, parse_dsn
from ltrain_collector.errors import (
    ACCESS_DENIED,
    RESTORE_HINT,
    DamagedData,
    NoStore,
    NotMigrated,
    QueryFailed,
    TooMuch,
)
from ltrain_collector.store.chdb_engine import Engine
from ltrain_collector.store.embedded import EmbeddedBackend
from ltrain_collector.store.formats import Parameters
from ltrain_collector.store.migration import MigrationResult, migrate
from ltrain_instrument.settings import HOME, STORE

LOCAL_SERVER = Server("127.0.0.1", PORT)
"""The address that `ltrain up` serves by default."""

MAX_QUERY_BYTES = 8 << 30
"""Size limit of a result that `Store.query` returns."""

DAMAGED_DATA_CODES = (33, 40, 226, 246, 271, 432)
"""ClickHouse error codes of files that are truncated, changed or missing."""

MISSING_OBJECT_CODES = (47, 60, 81)
"""ClickHouse error codes of an unknown column, table and database."""


class Backend(Protocol):
    """The common interface of a folder and a server."""

    def batches(
        self, sql: str, params: Parameters | None, max_seconds: int = 0
    ) -> Iterator[pl.DataFrame]: ...
    def export(self, sql: str, form: str, params: Parameters | None) -> Iterator[bytes]: ...
    def command(self, sql: str) -> None: ...
    def insert(self, table: str, rows: pa.Table) -> int: ...
    def insert_raw(self, into: str, form: str, payload: bytes) -> int: ...
    def close(self) -> None: ...


SPANS_VIEW = (
    "SELECT create_table_query AS text FROM system.tables "
    "WHERE database = 'otel' AND name = 'spans'"
)
EXPORTERS = "SELECT database FROM system.tables WHERE name = 'otel_traces' ORDER BY database"


class Store(AbstractContextManager["Store"]):
    """An open store; usable from any thread."""

    def __init__(self, backend: Backend, name: str, server: Server | None = None) -> None:
        self._backend = backend
        self.name = name
        """The store's address, for messages."""
        self.server = server
        """The server, which other processes may read too; None: a folder that this one has open."""

    @classmethod
    def open(cls, dsn: str | Server | None = None, *, create: bool = True, key: str = "") -> Self:
        """Open the store at `dsn`, else at LTRAIN_STORE, else the store of this machine.

        Args:
            dsn: the address, or the `server` of another store.
            create: create the folder of a `chdb:///dir` that does not exist.
            key: a key of the server, in place of that of its address.

        Raises:
            BadDsn: the address is invalid.
            NoStore: there is no store.
            StoreInUse: another process has the folder open.
            StoreUnusable: the folder cannot be used.
            StoreUnreachable: the server does not answer or refuses the connection.
        """
        address: Folder | Server
        if isinstance(dsn, Server):
            address = dsn
        else:
            address_text = dsn or STORE.read()
            address = parse_dsn(address_text) if address_text else _find_local_store()
        if isinstance(address, Server):
            # importing its client takes a third of a second, which a folder does not need
            from ltrain_collector.store.remote import RemoteBackend

            if key:
                address = replace(address, user="any", password=key)
            return cls(RemoteBackend(address), str(address), address)
        if not create and not address.path.is_dir():
            raise NoStore(
                f"There is no store in {address.path}. Name another with --store or LTRAIN_STORE, "
                "or create one with `ltrain up`."
            )
        return cls(EmbeddedBackend(Engine(address.path)), f"chdb://{address.path}")

    def open_as_owner(self) -> Self | None:
        """Open the same server with a key of its owner, which may change it for a minute.

        Return None for a folder, and where this user cannot read the secret of the store.
        """
        if self.server is None:
            return None
        from ltrain_collector.store.remote import sign_owner_key

        key = sign_owner_key(self.server)
        return type(self).open(self.server, key=key) if key else None

    def query(self, sql: str, params: Parameters | None = None) -> pl.DataFrame:
        """Return all rows of a query; `params` are the values of `{name:Type}` in the SQL.

        Raises:
            QueryFailed: ClickHouse refuses the query; `code` is ClickHouse's own.
            TooMuch: the result has more than `MAX_QUERY_BYTES`.
        """
        parts, size = list[pl.DataFrame](), 0.0
        for frame in self.frames(sql, params):
            parts.append(frame)
            size += frame.estimated_size()
            if size > MAX_QUERY_BYTES:
                raise TooMuch(
                    f"The result is larger than {MAX_QUERY_BYTES >> 30} GiB, the limit of a result "
                    "in memory. Select fewer columns or rows, or read it in parts: Store.stream, "
                    "or `ltrain sql` with --format parquet --out FILE."
                )
        return pl.concat(parts)

    def stream(self, sql: str, params: Parameters | None = None) -> Iterator[pl.DataFrame]:
        """Yield the rows in non-empty frames as ClickHouse produces them, in bounded memory.

        Raises:
            QueryFailed: ClickHouse refuses the query, before or after the first frame.
        """
        return (frame for frame in self.frames(sql, params) if frame.height)

    def frames(
        self, sql: str, params: Parameters | None = None, *, max_seconds: int = 0
    ) -> Iterator[pl.DataFrame]:
        """Yield an empty frame with the columns and types, then the frames of `stream`.

        Args:
            max_seconds: seconds after which the query fails; 0 for the limit of the store.
        """
        with self._error_hints():
            yield from self._backend.batches(sql, params, max_seconds)

    def export(self, sql: str, form: str, params: Parameters | None = None) -> Iterator[bytes]:
        """Yield the result in ClickHouse's format `form`, e.g. JSONEachRow."""
        with self._error_hints():
            yield from self._backend.export(sql, form, params)

    def command(self, sql: str) -> None:
        """Run a statement that changes the store; `query` and `export` only read."""
        self._backend.command(sql)

    def insert(self, table: str, frame: pl.DataFrame) -> int:
        """Insert `frame` into the columns of `table` that it names; return the number of rows.

        The rows can be read when it returns.
        """
        return self._backend.insert(table, frame.to_arrow())

    def insert_rows(self, into: str, payload: bytes) -> int:
        """Insert RowBinary rows; `into` is the table and its columns in the order of the rows."""
        return self._backend.insert_raw(into, "RowBinary", payload)

    def migrate(self, traces: str | None = None, **tables: str) -> MigrationResult:
        """Run the steps that the store lacks and create the views again; any number of times.

        Args:
            traces: a table that an exporter created; ltrain then creates none, and the views read
                this one, as they do where `otel.otel_traces` itself lacks ltrain's columns.
            tables: the same for other tables, e.g. `logs` or `metrics_gauge`.

        Raises:
            StoreNewer: a newer ltrain has changed the store.
            BadTable: a named table does not exist.
        """
        return migrate(self, {**({"traces": traces} if traces else {}), **tables})

    def read_exporter_tables(self) -> None:
        """Let the views read the tables of OpenTelemetry's exporter in the address's database.

        A folder, and a database that is ltrain's, are only migrated.

        Raises:
            NoStore: the database has no table of the exporter.
            NotMigrated: the user may not create the views.
        """
        found = self.query(EXPORTERS)["database"].to_list()
        database = self.server.database if self.server else "otel"
        if database == "default" and database not in found:
            database = "otel"
        if self.server and database not in found:
            raise NoStore(
                f"{self.name} has no table otel_traces in the database '{database}'. Databases "
                f"with one: {', '.join(found) or 'none'}. Name one, as in clickhouse://HOST/otel."
            )
        views = "".join(self.query(SPANS_VIEW)["text"])
        if f"{database}.otel_traces" in views.replace("`", "") and not self._is_outdated():
            return
        try:
            self.migrate(None if database == "otel" else f"{database}.otel_traces")
        except QueryFailed as error:
            if error.code != ACCESS_DENIED:
                raise
            raise NotMigrated(
                f"{self.name}: ltrain reads these tables through views in the database otel, which "
                f"this user may not create: {error} Allow it, or copy the traces into a store of "
                f"your own with `ltrain import clickhouse://HOST/{database}`.",
                error.code,
            ) from error

    @contextmanager
    def _error_hints(self) -> Iterator[None]:
        """Add how to fix it to errors of damaged files and of a store that needs migration."""
        try:
            yield
        except QueryFailed as error:
            if error.code in DAMAGED_DATA_CODES:
                raise DamagedData(
                    f"Files of the store {self.name} are damaged: {error} {RESTORE_HINT}",
                    error.code,
                ) from error
            if (
                error.code not in MISSING_OBJECT_CODES
                or "otel" not in str(error)
                or not self._is_outdated()
            ):
                raise
            raise NotMigrated(
                f"The store {self.name} lacks tables or views of this ltrain; run `ltrain store "
                f"migrate` once. ({error})",
                error.code,
            ) from error

    def _is_outdated(self) -> bool:
        """Return whether an older ltrain created the views, or none did."""
        try:
            applied_version = pl.concat(self._backend.batches(schema.VERSION, None))
        except QueryFailed:
            return True
        return int(applied_version.item()) < len(schema.steps())

    def close(self) -> None:
        """Close the folder or the connections."""
        self._backend.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _find_local_store() -> Folder | Server:
    folder: Path = HOME.read() / "store"
    if _is_reachable(LOCAL_SERVER):
        return LOCAL_SERVER
    if folder.is_dir():
        return Folder(folder.absolute())
    raise NoStore(
        f"There is no trace store: {LOCAL_SERVER} does not answer, and no folder {folder} exists. "
        "Start one with `ltrain up`, or name one with --store or LTRAIN_STORE."
    )


def _is_reachable(server: Server) -> bool:
    connection = HTTPConnection(server.host, server.port, timeout=1)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
