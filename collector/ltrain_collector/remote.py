"""A store behind ClickHouse's HTTP interface: a ClickHouse server, or `ltrain up`."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from io import RawIOBase
from typing import Any

import clickhouse_connect
import polars as pl
import pyarrow as pa
from clickhouse_connect.driver.exceptions import ClickHouseError
from clickhouse_connect.driver.httputil import get_pool_manager
from urllib3.exceptions import HTTPError

from ltrain_collector.dsn import Server
from ltrain_collector.embedded import FRAMES
from ltrain_collector.errors import KEYLESS, NotOwner, QueryFailed, StoreUnreachable, code_of
from ltrain_collector.frames import frame
from ltrain_collector.owner import ANOTHERS, MISSING, owners_key, refusal
from ltrain_collector.parameters import Parameters
from ltrain_instrument.loopback import is_loopback

# what its client logs is in the errors that we raise; without a handler Python prints it, too
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())

READ = {
    **FRAMES,
    "session_timezone": "UTC",
    "output_format_arrow_string_as_string": "1",
    "output_format_arrow_low_cardinality_as_dictionary": "0",
    "readonly": "2",
}
"""What makes a server's Arrow equal to that of a folder."""

LEAST = (26, 2)
"""The first ClickHouse with every setting that we name, by its own system.settings_changes."""

UNAUTHENTICATED = 516
"""ClickHouse's number for a wrong key or password."""

CHUNK = 1 << 20

TAIL = 16 << 10
"""Bytes of an answer's end that may hold an error."""


Headers = dict[str, str]
"""Of one request, by their names."""


class RemoteBackend:
    def __init__(self, server: Server) -> None:
        """Connect.

        Raises:
            StoreUnreachable: when nobody answers, or it does not let us in.
        """
        self._server = server
        self._owner = False
        """Whether changes need an owner's key."""
        try:
            self._client = clickhouse_connect.get_client(
                host=server.host,
                port=server.port,
                username=server.user,
                password=server.password,
                database=server.database,
                interface="https" if server.secure else "http",
                autogenerate_session_id=False,  # a session allows one query at a time
                # a proxy of the environment does not know this machine's own address
                pool_mgr=get_pool_manager() if is_loopback(server.host) else None,
            )
        except ClickHouseError as error:
            if code_of(str(error)) == UNAUTHENTICATED:
                how = "with this key or password" if server.password else "without a key"
                raise StoreUnreachable(
                    f"The store {server} does not serve user '{server.user}' {how}. Put one that "
                    "reads into LTRAIN_STORE or --store, as http://any:KEY@host:8123; "
                    "`ltrain key make query` makes one."
                ) from error
            raise StoreUnreachable(
                f"The store {server} does not serve user '{server.user}': {_why(error)}. "
                "Is it `ltrain up` or a ClickHouse, and does it run? Check LTRAIN_STORE or --store."
            ) from error

        if _version(str(self._client.server_version)) < LEAST:
            self._client.close()
            raise StoreUnreachable(
                f"The store {server} is ClickHouse {self._client.server_version}; ltrain needs "
                f"{'.'.join(map(str, LEAST))} at least, for settings and functions of its views. "
                "Upgrade the server, or name another with LTRAIN_STORE or --store."
            )

    def batches(self, sql: str, params: Parameters | None) -> Iterator[pl.DataFrame]:
        with self._answer(sql, "ArrowStream", params) as answer:
            reader = pa.ipc.open_stream(answer)
            yield frame(reader.schema.empty_table())
            for batch in reader:
                yield frame(batch)

    def export(self, sql: str, form: str, params: Parameters | None) -> Iterator[bytes]:
        with self._answer(sql, form, params) as answer:
            while chunk := answer.read(CHUNK):
                yield chunk

    @contextmanager
    def _answer(self, sql: str, form: str, params: Parameters | None) -> Iterator["_Tail"]:
        with _query_errors():
            raw = self._client.raw_stream(
                sql, parameters=_bound(params), settings=self._reading(), fmt=form
            )
            with closing(_Tail(raw)) as answer:
                try:
                    yield answer
                # Arrow cannot read what the server writes when it fails in mid-stream
                except (pa.ArrowException, HTTPError, OSError) as error:
                    raise QueryFailed(*answer.failure(error)) from error

    def command(self, sql: str) -> None:
        self._changed(lambda key: self._client.command(sql, transport_settings=key))

    def insert(self, table: str, rows: pa.Table) -> int:
        summary = self._changed(
            lambda key: self._client.insert_arrow(table, rows, transport_settings=key)
        )
        return int(summary.written_rows)

    def insert_raw(self, into: str, form: str, payload: bytes) -> int:
        at_once = {"async_insert": "0"}
        summary = self._changed(
            lambda key: self._client.raw_insert(
                into, None, payload, at_once, form, transport_settings=key
            )
        )
        return int(summary.written_rows)

    def _changed(self, call: Callable[[Headers], Any]) -> Any:
        """Return what a call that changes the store returns.

        A store without keys refuses it: then it is made again with an owner's key, and the next
        ones at once. Calls that read show none, since another store's would keep them out.

        Raises:
            NotOwner: when this user has not the store's secret.
        """
        with _query_errors():
            if not self._owner:
                try:
                    return call({})
                except ClickHouseError as error:
                    if self._server.password or KEYLESS not in str(error):
                        raise
            return self._changed_by_owner(call)

    def _changed_by_owner(self, call: Callable[[Headers], Any]) -> Any:
        key = owners_key(self._server)
        if key is None:
            raise NotOwner(refusal(self._server, MISSING), UNAUTHENTICATED)
        self._owner = True
        try:
            return call({"Authorization": f"Bearer {key}"})
        except ClickHouseError as error:
            if code_of(str(error)) == UNAUTHENTICATED:
                raise NotOwner(refusal(self._server, ANOTHERS), UNAUTHENTICATED) from error
            raise

    def close(self) -> None:
        self._client.close()

    def _reading(self) -> dict[str, str]:
        readonly = self._client.server_settings.get("readonly")
        # a user who may only read may not change settings either
        return {} if readonly is not None and readonly.value == "1" else READ


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _bound(params: Parameters | None) -> dict[str, Any] | None:
    # an empty dict would make the client read `%` in the SQL as its own
    return dict(params) if isinstance(params, Mapping) and params else None


@contextmanager
def _query_errors() -> Iterator[None]:
    try:
        yield
    except ClickHouseError as error:
        raise QueryFailed(_short(error), code_of(str(error))) from error


def _short(error: Exception) -> str:
    message = str(error)
    start = max(message.find("Code: "), 0)
    return message[start:].strip().splitlines()[0] if message else type(error).__name__


def _why(error: Exception) -> str:
    """Return the system's own words where there was no connection."""
    found = re.search(r"\[Errno -?\d+\] ([^\"')]+)", str(error))
    return found[1] if found else _short(error)


class _Tail(RawIOBase):
    """An answer that remembers its end, where ClickHouse writes what went wrong in mid-stream."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._tail = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        part = bytes(self._raw.read(size if size >= 0 else None))
        self._tail = (self._tail + part)[-TAIL:] if len(part) < TAIL else part[-TAIL:]
        return part

    def failure(self, error: Exception) -> tuple[str, int]:
        """Return the server's own words and number, else those of `error`."""
        with suppress(HTTPError, OSError):  # the connection broke: what came before is all
            self._tail += self._raw.read(TAIL)
        text = self._tail.decode(errors="replace")
        told = _short(Exception(text)) if "Code: " in text else str(error)
        return told, code_of(told)

    def close(self) -> None:
        self._raw.close()
        super().close()
