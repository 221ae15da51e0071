"""ClickHouse's HTTP interface over chDB, as far as stock clients use it.

Each query is a session of its own. Arrow and the row formats stream in bounded memory; what fails
in mid-stream says so the way ClickHouse does, then breaks off.
"""

import asyncio
import json
import secrets
import uuid
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from ltrain_collector.asgi import (
    ClientGone,
    Receive,
    Refused,
    Scope,
    Send,
    body_of,
    guard,
    headers_of,
    reply,
)
from ltrain_collector.engine import READS, Engine
from ltrain_collector.errors import QueryFailed, code_of
from ltrain_collector.query.statement import Statement, read

BODY = 1 << 30
"""Bytes of one insert."""

LANES = 8
"""Queries at a time; more wait."""

CHUNK = 1 << 18

_END = object()
_NOT_FOUND = (60, 81)
"""Unknown table, unknown database."""


class Facade:
    """The ASGI app of the ClickHouse port."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lanes: asyncio.Queue[ThreadPoolExecutor] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            guard(headers := headers_of(scope))
            url = scope["query_string"].decode("latin-1")
            body = await body_of(receive, BODY)
            if scope["path"] in ("/ping", "/replicas_status") or not (url or body):
                await reply(send, 200, b"Ok.\n")
                return
            statement = read(scope["method"], url, headers, body)
        except Refused as error:
            code = str(code_of(str(error)))
            await reply(send, error.status, f"{error}\n".encode(), x_clickhouse_exception_code=code)
        except ClientGone:
            return
        else:
            await self._run(statement, receive, send)

    async def _run(self, statement: Statement, receive: Receive, send: Send) -> None:
        """Run in one thread from beginning to end: the engine's readers are bound to theirs."""
        lanes = self._lanes = self._lanes or _lanes()
        lane = await lanes.get()
        loop = asyncio.get_running_loop()
        parts = self._parts(statement)
        gone = asyncio.ensure_future(receive())  # after the body only a disconnect can come

        async def following() -> Any:
            return _END if gone.done() else await loop.run_in_executor(lane, next, parts, _END)

        try:
            await _Answer(send, statement.form).run(following)
        finally:
            gone.cancel()
            await loop.run_in_executor(lane, parts.close)
            lanes.put_nowait(lane)

    def _parts(self, statement: Statement) -> Generator[Any, None, None]:
        """Give the answer in parts: first the summary where it is known, then bytes."""
        if statement.rows is not None:
            yield self._insert(statement)
        elif READS.match(statement.sql) and statement.form == "ArrowStream":
            yield from self._arrow(statement)
        else:
            settings, database = statement.settings, statement.database
            yield from self._engine.formatted(statement.sql, statement.form, settings, database)

    def _insert(self, statement: Statement) -> dict[str, str]:
        rows = memoryview(statement.rows or b"")
        chunks = (bytes(rows[at : at + (8 << 20)]) for at in range(0, len(rows), 8 << 20))
        written = self._engine.insert(
            statement.sql, statement.form, chunks, statement.settings, statement.database
        )
        return {"written_rows": str(written), "written_bytes": str(len(rows))}

    def _arrow(self, statement: Statement) -> Iterator[bytes]:
        sink = _Sink()
        asked = self._engine.batches(statement.sql, statement.settings, statement.database)
        with asked as (schema, batches), pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                if sink.size > CHUNK:
                    yield sink.take()
        yield sink.take()


class _Answer:
    """One HTTP answer, whose head waits for the first part: until then an error has a status."""

    def __init__(self, send: Send, form: str) -> None:
        self._send = send
        self._tag = secrets.token_hex(8)
        self._started = False
        self._headers = {
            "x-clickhouse-query-id": str(uuid.uuid4()),
            "x-clickhouse-timezone": "UTC",
            "x-clickhouse-format": form,
            "x-clickhouse-exception-tag": self._tag,
        }

    async def run(self, following: Callable[[], Awaitable[Any]]) -> None:
        """Send the parts that `following` gives one after another, until `_END`."""
        try:
            while (part := await following()) is not _END:
                if isinstance(part, dict):
                    self._headers["x-clickhouse-summary"] = json.dumps(part)
                    del self._headers["x-clickhouse-format"]
                elif part:
                    await self._write(part)
        except QueryFailed as error:
            await self._fail(error)
            return
        if not self._started:
            del self._headers["x-clickhouse-exception-tag"]
        await self._write(b"", more=False)

    async def _write(self, part: bytes, more: bool = True) -> None:
        if not self._started:
            self._started = True
            raw = [(name.encode(), value.encode()) for name, value in self._headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
        await self._send({"type": "http.response.body", "body": part, "more_body": more})

    async def _fail(self, error: QueryFailed) -> None:
        text = f"{error}\n".encode()
        if self._started:
            head = f"\r\n__exception__\r\n{self._tag}\r\n".encode()
            tail = f"{len(text)} {self._tag}\r\n__exception__\r\n".encode()
            await self._write(head + text + tail, more=False)
            return
        status = 404 if error.code in _NOT_FOUND else 500
        await reply(self._send, status, text, x_clickhouse_exception_code=str(error.code))


class _Sink:
    """A file for Arrow to write to, emptied from time to time."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def write(self, part: Any) -> int:
        self._parts.append(bytes(part))
        self.size += len(self._parts[-1])
        return len(self._parts[-1])

    def take(self) -> bytes:
        parts, self._parts, self.size = self._parts, [], 0
        return b"".join(parts)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """What was written can still be taken."""


def _lanes() -> asyncio.Queue[ThreadPoolExecutor]:
    lanes: asyncio.Queue[ThreadPoolExecutor] = asyncio.Queue()
    for number in range(LANES):
        lanes.put_nowait(ThreadPoolExecutor(1, f"ltrain-query-{number}"))
    return lanes
