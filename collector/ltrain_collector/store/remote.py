"""A store behind ClickHouse's HTTP interface: a ClickHouse server or `ltrain up`."""

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

from ltrain_collector.access import existing_secret, secret_file, sign_owner
from ltrain_collector.dsn import Server, local_folder
from ltrain_collector.errors import (
    AUTHENTICATION_FAILED,
    READ_ONLY_REFUSAL,
    NotOwner,
    QueryFailed,
    StoreUnreachable,
    code_of,
)
from ltrain_collector.store.embedded import FRAME_SETTINGS
from ltrain_collector.store.formats import Parameters, empty_frame, time_limit, to_polars
from ltrain_instrument.machine import is_loopback
from ltrain_instrument.settings import HOME, STORE_SECRET

# our errors contain what the client logs; without a handler Python would print it as well
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())

READ_SETTINGS = {
    **FRAME_SETTINGS,
    "session_timezone": "UTC",
    "output_format_arrow_string_as_string": "1",
    "output_format_arrow_low_cardinality_as_dictionary": "0",
    "readonly": "2",
}
"""Settings that make a server's Arrow equal to that of a folder."""

MIN_VERSION = (26, 2)
"""The first ClickHouse version with all settings that ltrain uses (system.settings_changes)."""

CHUNK_BYTES = 1 << 20

TAIL_BYTES = 16 << 10
"""Bytes at the end of a response in which ClickHouse can write an error."""


Headers = dict[str, str]
"""Headers of one request, by name."""

OWNER_KEY_SECONDS = 60
"""Lifetime of an owner's key in seconds: short, since the key is sent in clear text and checked
only when its request starts."""

WRONG_SECRET = "is another store's"

NO_SECRET = "is not here"


class RemoteBackend:
    def __init__(self, server: Server) -> None:
        """Connect to `server`."""
        self._server = server
        try:
            self._client = clickhouse_connect.get_client(
                host=server.host,
                port=server.port,
                username=server.user,
                password=server.password,
                database=server.database,
                interface="https" if server.secure else "http",
                autogenerate_session_id=False,  # a session allows one query at a time
                # a proxy from the environment cannot reach this machine's loopback address
                pool_mgr=get_pool_manager() if is_loopback(server.host) else None,
            )
        except ClickHouseError as error:
            if code_of(str(error)) == AUTHENTICATION_FAILED:
                how = "with this key or password" if server.password else "without a key"
                raise StoreUnreachable(
                    f"The store {server} does not serve user '{server.user}' {how}. Set a key that "
                    "can read in LTRAIN_STORE or --store, as http://any:KEY@host:8123; "
                    "`ltrain key make query` makes one."
                ) from error
            raise StoreUnreachable(
                f"The store {server} does not serve user '{server.user}': "
                f"{_connection_error(error)}. Check the address in LTRAIN_STORE or --store, and "
                "that `ltrain up` or a ClickHouse server runs there."
            ) from error

        if _parse_version(str(self._client.server_version)) < MIN_VERSION:
            self._client.close()
            raise StoreUnreachable(
                f"The store {server} is ClickHouse {self._client.server_version}; ltrain's views "
                f"need {'.'.join(map(str, MIN_VERSION))} or newer. Upgrade the server, or name "
                "another one with LTRAIN_STORE or --store."
            )

        # the client sends no setting that has the value already, but its first request has no key
        readonly = self._client.server_settings.pop("readonly", None)
        self._can_set = readonly is None or readonly.value != "1"
        """Whether the user can change settings."""

    def batches(
        self, sql: str, params: Parameters | None, max_seconds: int = 0
    ) -> Iterator[pl.DataFrame]:
        with self._stream(sql, "ArrowStream", params, max_seconds) as response:
            reader = pa.ipc.open_stream(response)
            yield empty_frame(reader.schema)
            for batch in reader:
                yield to_polars(batch)

    def export(self, sql: str, form: str, params: Parameters | None) -> Iterator[bytes]:
        with self._stream(sql, form, params) as response:
            while chunk := response.read(CHUNK_BYTES):
                yield chunk

    @contextmanager
    def _stream(
        self, sql: str, form: str, params: Parameters | None, max_seconds: int = 0
    ) -> Iterator["_ResponseWithTail"]:
        with _query_errors():
            raw = self._as_owner(
                lambda key: self._client.raw_stream(
                    sql,
                    parameters=_query_parameters(params),
                    settings=self._read_settings(max_seconds),
                    fmt=form,
                    transport_settings=key,
                )
            )
            with closing(_ResponseWithTail(raw)) as response:
                try:
                    yield response
                # an error that the server writes in mid-stream is not valid Arrow
                except (pa.ArrowException, HTTPError, OSError) as error:
                    raise QueryFailed(*response.failure(error)) from error

    def command(self, sql: str) -> None:
        self._write(lambda key: self._client.command(sql, transport_settings=key))

    def insert(self, table: str, rows: pa.Table) -> int:
        summary = self._write(
            lambda key: self._client.insert_arrow(table, rows, transport_settings=key)
        )
        return int(summary.written_rows)

    def insert_raw(self, into: str, form: str, payload: bytes) -> int:
        settings = {"async_insert": "0"}
        summary = self._write(
            lambda key: self._client.raw_insert(
                into, None, payload, settings, form, transport_settings=key
            )
        )
        return int(summary.written_rows)

    def _write(self, call: Callable[[Headers], Any]) -> Any:
        """Make a call that changes the store, and return its result."""
        with _query_errors():
            try:
                return self._as_owner(call)
            except ClickHouseError as error:
                if self._server.password or READ_ONLY_REFUSAL not in str(error):
                    raise
                has_secret = sign_owner_key(self._server) is not None
                problem = WRONG_SECRET if has_secret else NO_SECRET
                message = not_owner_message(self._server, problem)
                raise NotOwner(message, AUTHENTICATION_FAILED) from error

    def _as_owner(self, call: Callable[[Headers], Any]) -> Any:
        """Make a call with an owner's key, and without it if the server has another secret."""
        key = None if self._server.password else sign_owner_key(self._server)
        if key is None:
            return call({})
        try:
            return call({"Authorization": f"Bearer {key}"})
        except ClickHouseError as error:
            if code_of(str(error)) != AUTHENTICATION_FAILED:
                raise
            return call({})

    def close(self) -> None:
        self._client.close()

    def _read_settings(self, max_seconds: int) -> dict[str, str]:
        return READ_SETTINGS | time_limit(max_seconds) if self._can_set else {}


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _query_parameters(params: Parameters | None) -> dict[str, Any] | None:
    # with an empty dict the client would interpret `%` in the SQL
    return dict(params) if isinstance(params, Mapping) and params else None


@contextmanager
def _query_errors() -> Iterator[None]:
    try:
        yield
    except ClickHouseError as error:
        code, reason = code_of(str(error)), _first_line(error)
        if "Code: " not in reason:  # the message of the connection has the whole query in its URL
            reason = f"The store does not answer: {_connection_error(error)}."
        raise QueryFailed(reason, code) from error


def _first_line(error: Exception) -> str:
    message = str(error)
    start = max(message.find("Code: "), 0)
    return message[start:].strip().splitlines()[0] if message else type(error).__name__


def _connection_error(error: Exception) -> str:
    """Return the system's error message where the connection failed."""
    match = re.search(r"\[Errno -?\d+\] ([^\"')]+)", str(error))
    return match[1] if match else _first_line(error)


class _ResponseWithTail(RawIOBase):
    """A response that remembers its end, where ClickHouse writes an error in mid-stream."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._tail = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        part = bytes(self._raw.read(size if size >= 0 else None))
        self._tail = (
            (self._tail + part)[-TAIL_BYTES:] if len(part) < TAIL_BYTES else part[-TAIL_BYTES:]
        )
        return part

    def failure(self, error: Exception) -> tuple[str, int]:
        """Return the server's error message and code, else those of `error`."""
        with suppress(HTTPError, OSError):  # the connection broke: there is nothing more to read
            self._tail += self._raw.read(TAIL_BYTES)
        text = self._tail.decode(errors="replace")
        text = _first_line(Exception(text)) if "Code: " in text else str(error)
        return text, code_of(text)

    def close(self) -> None:
        self._raw.close()
        super().close()


def sign_owner_key(server: Server) -> str | None:
    """Return a key with which this user can use all of the store, or None without its secret.

    Over HTTP, a store without keys is read-only, and its queries have limits; its owner, who can
    read its secret, uses it with a key signed for each call.
    """
    folder = local_folder(server, HOME.read())
    secret = existing_secret(folder) if folder else None
    return sign_owner(secret, OWNER_KEY_SECONDS) if secret else None


def not_owner_message(server: Server, problem: str) -> str:
    """Return the message for a user whose secret is missing or belongs to another store."""
    folder = local_folder(server, HOME.read())
    file_place = f"the file {secret_file(folder)}" if folder else STORE_SECRET.name
    secret_place = STORE_SECRET.name if STORE_SECRET.read() else file_place
    return (
        f"Only its owner can change the store {server}, and the secret in {secret_place} "
        f"{problem}. Set LTRAIN_HOME to the home of its `ltrain up`, set {STORE_SECRET.name} to "
        "its secret, or put an admin key in the address, as http://any:KEY@host:8123."
    )
