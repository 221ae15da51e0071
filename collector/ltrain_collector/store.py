"""The trace store: the one door to it for Python, whether a folder or a server.

Both kinds give the same frames: strings are `pl.String`, `DateTime64` is `pl.Datetime` in UTC,
`DateTime` is `pl.UInt32` (ClickHouse's own Arrow rule), `Map(K, V)` is `pl.Map(K, V)`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import polars as pl
import pyarrow as pa

from ltrain_collector import schema
from ltrain_collector.dsn import PORT, Folder, Server, parse
from ltrain_collector.embedded import EmbeddedBackend
from ltrain_collector.engine import Engine
from ltrain_collector.errors import MEND, DamagedData, NoStore, NotMigrated, QueryFailed, TooMuch
from ltrain_collector.ingest.rows import Rows
from ltrain_collector.ingest.signals import TRACES, Signal
from ltrain_collector.migration import Migrated, migrate
from ltrain_collector.parameters import Parameters
from ltrain_instrument.settings import HOME, STORE

LOCAL = Server("127.0.0.1", PORT)
"""What `ltrain up` serves."""

QUERY_BYTES = 8 << 30
"""Of a result that is given at once."""

DAMAGED = (33, 40, 226, 246, 271, 432)
"""ClickHouse's numbers of files that are too short, changed or gone."""

MISSING = (47, 60, 81)
"""ClickHouse's numbers of a column, a table and a database that are not there."""


class Backend(Protocol):
    """What a folder and a server both do."""

    def batches(self, sql: str, params: Parameters | None) -> Iterator[pl.DataFrame]: ...
    def export(self, sql: str, form: str, params: Parameters | None) -> Iterator[bytes]: ...
    def command(self, sql: str) -> None: ...
    def insert(self, table: str, rows: pa.Table) -> int: ...
    def insert_raw(self, into: str, form: str, payload: bytes) -> int: ...
    def close(self) -> None: ...


class Store:
    """An open store; usable from any thread."""

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend = backend
        self.name = name
        """Where it is, as a person would say it."""

    @classmethod
    def open(cls, dsn: str | None = None, *, create: bool = True) -> Self:
        """Open the store at `dsn`, else at LTRAIN_STORE, else the one of this machine.

        `create` makes a `chdb:///dir` that is missing.

        Raises:
            BadDsn: when it is not an address.
            NoStore: when there is none.
            StoreInUse: when another process has the folder.
            StoreUnusable: when the folder cannot be used.
            StoreUnreachable: when the server does not answer or refuses us.
        """
        where = dsn or STORE.read()
        address = parse(where) if where else _here()
        if isinstance(address, Server):
            # its client costs a third of a second to import, which a folder need not pay
            from ltrain_collector.remote import RemoteBackend

            return cls(RemoteBackend(address), str(address))
        if not create and not address.path.is_dir():
            raise NoStore(
                f"There is no store in {address.path}. Name one with --store or LTRAIN_STORE, "
                "or make one with `ltrain up`."
            )
        return cls(EmbeddedBackend(Engine(address.path)), f"chdb://{address.path}")

    def query(self, sql: str, params: Parameters | None = None) -> pl.DataFrame:
        """Give all rows; `params` are values for `{name:Type}` in the SQL.

        Raises:
            QueryFailed: when ClickHouse refuses it; `code` is ClickHouse's own.
            TooMuch: when it gives more than memory should hold.
        """
        few, size = list[pl.DataFrame](), 0.0
        for frame in self.frames(sql, params):
            few.append(frame)
            size += frame.estimated_size()
            if size > QUERY_BYTES:
                raise TooMuch(
                    f"The query gives more than {QUERY_BYTES >> 30} GiB, which memory should not "
                    "hold. Select fewer columns or rows, or read it in parts: Store.stream, or "
                    "`ltrain sql` with --format parquet --out FILE."
                )
        return pl.concat(few)

    def stream(self, sql: str, params: Parameters | None = None) -> Iterator[pl.DataFrame]:
        """Give the rows in frames as they are made, in bounded memory; none is empty.

        Raises:
            QueryFailed: when ClickHouse refuses it, at once or in mid-stream.
        """
        return (frame for frame in self.frames(sql, params) if frame.height)

    def frames(self, sql: str, params: Parameters | None = None) -> Iterator[pl.DataFrame]:
        """Do as `stream` does, but give an empty frame first, which has the columns and types."""
        with self._explained():
            yield from self._backend.batches(sql, params)

    def export(self, sql: str, form: str, params: Parameters | None = None) -> Iterator[bytes]:
        """Give the result as ClickHouse writes it in format `form`, e.g. JSONEachRow."""
        with self._explained():
            yield from self._backend.export(sql, form, params)

    def command(self, sql: str) -> None:
        """Run a statement that changes something; `query` and `export` only read."""
        self._backend.command(sql)

    def insert(self, table: str, frame: pl.DataFrame) -> int:
        """Append `frame` to the columns it names and give the number of its rows.

        Rows are readable when it returns.
        """
        return self._backend.insert(table, frame.to_arrow())

    def insert_otlp(self, body: bytes, signal: Signal = TRACES) -> Rows:
        """Insert one serialised OTLP request of `signal`, without a collector.

        A resource that names no sender in `ltrain.sender` gets `local`.

        Raises:
            BadRequest: when the bytes are none.
        """
        rows = signal.local(signal.parse(body))
        for table, block in rows.blocks.items():
            self.insert_rows(schema.into(table), block.payload)
        return rows

    def insert_rows(self, into: str, payload: bytes) -> int:
        """Insert rows in RowBinary; `into` is the table and its columns in the rows' order."""
        return self._backend.insert_raw(into, "RowBinary", payload)

    def migrate(self, traces: str | None = None, **tables: str) -> Migrated:
        """Run the steps that the store lacks and renew the views; any number of times.

        `traces` names a table that an exporter created elsewhere (other signals by their names,
        too): then no table is made for it, and the views read that one. So they do where
        `otel.otel_traces` itself lacks our columns.

        Raises:
            StoreNewer: when a newer ltrain has changed the store.
            BadTable: when a table that is named is not there.
        """
        return migrate(self, {**({"traces": traces} if traces else {}), **tables})

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say of what is missing because the store was never migrated how to mend it."""
        try:
            yield
        except QueryFailed as error:
            if error.code in DAMAGED:
                raise DamagedData(
                    f"The store {self.name} has damaged files: {error} {MEND}", error.code
                ) from error
            if error.code not in MISSING or "otel" not in str(error) or not self._behind():
                raise
            raise NotMigrated(
                f"The store {self.name} lacks tables or views of this ltrain; run `ltrain store "
                f"migrate` on it, once. ({error})",
                error.code,
            ) from error

    def _behind(self) -> bool:
        """Say whether the views were made by an older ltrain, or never."""
        try:
            found = pl.concat(self._backend.batches(schema.VERSION, None))
        except QueryFailed:
            return True
        return int(found.item()) < len(schema.steps())

    def close(self) -> None:
        """Release the folder or the connections."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


def _here() -> Folder | Server:
    folder: Path = HOME.read() / "store"
    if _answers(LOCAL):
        return LOCAL
    if folder.is_dir():
        return Folder(folder.absolute())
    raise NoStore(
        f"No trace store: {LOCAL} does not answer and there is no folder {folder}. "
        "Start one with `ltrain up`, or name one with --store or LTRAIN_STORE."
    )


def _answers(server: Server) -> bool:
    connection = HTTPConnection(server.host, server.port, timeout=1)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
