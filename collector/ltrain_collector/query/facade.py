"""ClickHouse's HTTP interface over chDB, as far as stock clients use it.

A query is one of its own unless it names a session. Arrow and the row formats stream in bounded
memory; what fails in mid-stream says so the way ClickHouse does, then breaks off. A client that
leaves ends its query.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

from ltrain_collector.asgi import (
    ClientGone,
    Receive,
    Refused,
    Scope,
    Send,
    body_of,
    headers_of,
    reply,
)
from ltrain_collector.engine import Engine
from ltrain_collector.errors import NO_CODE, QueryFailed, code_of
from ltrain_collector.keys import Grant, Keys, Role
from ltrain_collector.query.access import DENIED, Reader
from ltrain_collector.query.answer import Answer, refuse
from ltrain_collector.query.compression import packer
from ltrain_collector.query.counters import QueryCounters
from ltrain_collector.query.outside import Outside
from ltrain_collector.query.running import Runner
from ltrain_collector.query.sessions import Session, Sessions
from ltrain_collector.query.statement import Statement, fields_of, read

BODY = 1 << 30
"""Bytes of one insert, packed or not."""

HELD = 2 << 30
"""Bytes of all requests at a time; more are told to come back."""

LANES = 8
"""Queries at a time; more wait."""
READERS = 6
"""Queries at a time of keys that only read: others find a lane whatever these do."""
ASKED = 16 << 20
"""Bytes of a request of a key that only reads."""

AGAIN = 0.25
"""Seconds between two tries to end the query of a client that left: it may not have begun yet."""

UNAUTHENTICATED = 516
"""ClickHouse's AUTHENTICATION_FAILED."""

_END = object()


class Facade:
    """The ASGI app of the ClickHouse port."""

    def __init__(self, engine: Engine, keys: Keys) -> None:
        self._keys = keys
        self._sessions = Sessions(engine)
        self._runner = Runner(engine, self._sessions, Reader(engine), Outside(engine))
        self._lanes: asyncio.Queue[ThreadPoolExecutor] | None = None
        self._readers = asyncio.Semaphore(READERS)
        self._held = 0
        self.counters = QueryCounters()

    def close(self) -> None:
        """Close the sessions' connections."""
        self._sessions.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        url = scope["query_string"].decode("latin-1")
        if scope["path"] in ("/ping", "/replicas_status"):
            await reply(send, 200, b"Ok.\n")
            return
        fields = fields_of(url)
        try:
            grant = self._entered(headers, fields)
            only_reads = grant is not None and grant.role is Role.QUERY
            limit = ASKED if only_reads else BODY
            body = await self._body(headers, receive, limit)
            try:
                if not (url or body):
                    await reply(send, 200, b"Ok.\n")
                    return
                statement = read(scope["method"], fields, headers, body, limit)
                async with self._readers if only_reads else nullcontext():
                    await self._answer(statement, fields, headers, grant, receive, send)
            finally:
                self._held -= len(body)
        except Refused as error:
            self.counters.errors += 1
            await _refused(send, error)
        except QueryFailed as error:
            self.counters.errors += 1
            await refuse(send, error.code, f"{error}\n".encode())
        except ClientGone:
            return

    def _entered(self, headers: dict[str, str], fields: dict[str, str]) -> Grant | None:
        grant = self._keys.enter(headers, fields)
        if grant is not None and not grant.reads:
            text = f"A key of role '{grant.role}' reads nothing. (ACCESS_DENIED)"
            raise QueryFailed(f"Code: {DENIED}. DB::Exception: {text}", DENIED)
        return grant

    async def _body(self, headers: dict[str, str], receive: Receive, limit: int) -> bytes:
        told = headers.get("content-length", "")
        coming = int(told) if told.isdecimal() else 0
        if self._held + coming > HELD:
            raise Refused(503, "Code: 202. DB::Exception: Too many bytes wait here; try again.")
        body = await body_of(receive, limit)
        self._held += len(body)
        return body

    async def _answer(
        self,
        statement: Statement,
        fields: dict[str, str],
        headers: dict[str, str],
        grant: Grant | None,
        receive: Receive,
        send: Send,
    ) -> None:
        """Run in one thread from beginning to end: the engine's readers are bound to theirs."""
        wanted = headers.get("accept-encoding", "")
        off = fields.get("enable_http_compression") == "0"
        encoding, packs = packer("" if off else wanted)
        answer = Answer(send, statement.form, statement.query_id, encoding, packs)
        named, timeout = fields.get("session_id", ""), fields.get("session_timeout", "")
        owner, check = grant.name if grant else "", fields.get("session_check") == "1"
        async with self._sessions.held(owner, named, timeout, check) as session:
            last = await self._run(statement, session, grant, answer, receive)
        await last()  # who has read this may use the session again

    async def _run(
        self,
        statement: Statement,
        session: Session | None,
        grant: Grant | None,
        answer: Answer,
        receive: Receive,
    ) -> Callable[[], Awaitable[None]]:
        """Send all but what ends the answer, and give that."""
        lanes = self._lanes = self._lanes or _lanes()
        loop = asyncio.get_running_loop()
        gone = asyncio.ensure_future(receive())  # after the body only a disconnect can come
        lane = await lanes.get()
        tag = f"ltrain:{secrets.token_hex(8)}"
        parts = self._runner.run(statement, session, grant, tag)
        begun = time.monotonic()
        self.counters.running += 1
        try:
            while not gone.done():
                step = loop.run_in_executor(lane, _next, parts, answer)
                part = await self._watched(step, gone, tag)
                if part is _END:
                    break
                await answer.write(part)
            return answer.end
        except QueryFailed as error:
            self.counters.errors += 1
            return partial(answer.fail, error)
        # whatever it is, the client must hear of it
        except Exception as error:
            self.counters.errors += 1
            text = f"Code: {NO_CODE}. DB::Exception: {error!r}"
            return partial(answer.fail, QueryFailed(text, NO_CODE))
        finally:
            gone.cancel()
            await loop.run_in_executor(lane, parts.close)
            lanes.put_nowait(lane)
            self.counters.running -= 1
            self.counters.seconds.add(time.monotonic() - begun)

    async def _watched(self, step: asyncio.Future[Any], gone: asyncio.Future[Any], tag: str) -> Any:
        """Wait for the next part; end the query when its client leaves."""
        await asyncio.wait((step, gone), return_when=asyncio.FIRST_COMPLETED)
        while not step.done():
            await asyncio.to_thread(self._runner.kill, tag)
            await asyncio.wait((step,), timeout=AGAIN)
        return step.result()


def _next(parts: Generator[Any, None, None], answer: Answer) -> Any:
    part = next(parts, _END)
    return part if part is _END else answer.pack(part)


async def _refused(send: Send, error: Refused) -> None:
    text = str(error)
    code = code_of(text)
    if error.status in (401, 403) and "Code: " not in text:
        code = UNAUTHENTICATED
        text = f"Code: {code}. DB::Exception: {text} (AUTHENTICATION_FAILED)"
    raw = f"{text}\n".encode()
    await reply(send, error.status, raw, x_clickhouse_exception_code=str(code))


def _lanes() -> asyncio.Queue[ThreadPoolExecutor]:
    lanes: asyncio.Queue[ThreadPoolExecutor] = asyncio.Queue()
    for number in range(LANES):
        lanes.put_nowait(ThreadPoolExecutor(1, f"ltrain-query-{number}"))
    return lanes
