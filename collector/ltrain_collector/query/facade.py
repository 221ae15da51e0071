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
from ltrain_collector.grants import Grant
from ltrain_collector.keys import Keys
from ltrain_collector.query.access import DENIED, Reader
from ltrain_collector.query.answer import Answer, refuse
from ltrain_collector.query.compression import packer
from ltrain_collector.query.counters import QueryCounters
from ltrain_collector.query.lanes import Lanes, NoLane, stopping
from ltrain_collector.query.limits import Limits, Roles, only_reads
from ltrain_collector.query.outside import Outside
from ltrain_collector.query.running import Runner
from ltrain_collector.query.sessions import Session, Sessions
from ltrain_collector.query.statement import Statement, fields_of, read

BODY = 1 << 30
"""Bytes of one insert, packed or not."""

HELD = 2 << 30
"""Bytes of all requests at a time; more are told to come back."""

LANES = 8
"""Queries at a time of admins, or of a store without keys; more wait."""
READERS = 6
"""Queries at a time of keys that only read."""
ASKED = 16 << 20
"""Bytes of a request of a key that only reads."""

AGAIN = 0.25
"""Seconds between two tries to end a query: it may not have begun yet."""

MOMENT = 2.0
"""Seconds that queries have to end by themselves when the server stops."""

LATE = 1.0
"""Seconds after the time limit of a reader's query at which it is ended from here: ClickHouse's own
limit comes first where it can."""

UNAUTHENTICATED = 516
"""ClickHouse's AUTHENTICATION_FAILED."""

_END = object()


class Facade:
    """The ASGI app of the ClickHouse port."""

    def __init__(self, engine: Engine, keys: Keys) -> None:
        self._keys = keys
        self._sessions = Sessions(engine)
        self._roles = Roles.read()
        reader = Reader(engine, self._roles.reader)
        self._runner = Runner(engine, self._sessions, reader, Outside(engine), self._roles)
        self._readers = Lanes("read", READERS)
        self._others = Lanes("query", LANES)
        self._ended = asyncio.Event()
        self._held = 0
        self.counters = QueryCounters()

    def close(self) -> None:
        """Close the sessions' connections."""
        self._sessions.close()

    async def stop(self) -> None:
        """Begin no more queries, and end those that run after a moment."""
        for lanes in (self._readers, self._others):
            lanes.close()
        if self.counters.running:
            await asyncio.sleep(MOMENT)
        self._ended.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        url = scope["query_string"].decode("latin-1")
        if scope["path"] in ("/ping", "/replicas_status"):
            await reply(send, 200, b"Ok.\n")
            return
        fields = fields_of(url)
        try:
            grant = self._entered(headers, fields)
            limit = ASKED if only_reads(grant) else BODY
            body = await self._body(headers, receive, limit)
            try:
                if not (url or body):
                    await reply(send, 200, b"Ok.\n")
                    return
                statement = read(scope["method"], fields, headers, body, limit)
                await self._answer(statement, fields, headers, grant, receive, send)
            finally:
                self._held -= len(body)
        except Refused as error:
            self.counters.errors += 1
            if isinstance(error, NoLane):
                self.counters.refused[error.reason] += 1
            await _refused(send, error)
        except QueryFailed as error:
            self.counters.failed(error)
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
        """Send all but what ends the answer, and return that."""
        gone = asyncio.ensure_future(receive())  # after the body only a disconnect can come
        lanes = self._readers if only_reads(grant) else self._others
        limits = self._roles.of(grant)
        try:
            async with lanes.lane(grant.name if grant else "", limits, gone) as lane:
                self.counters.running += 1
                begun = time.monotonic()
                try:
                    parts = self._runner.run(statement, session, grant, tag := _tag())
                    watch = _Watch(self._runner, tag, gone, self._ended, limits)
                    return await self._parts(parts, watch, lane, answer)
                finally:
                    self.counters.running -= 1
                    self.counters.seconds.add(time.monotonic() - begun)
        finally:
            gone.cancel()

    async def _parts(
        self,
        parts: Generator[Any, None, None],
        watch: "_Watch",
        lane: ThreadPoolExecutor,
        answer: Answer,
    ) -> Callable[[], Awaitable[None]]:
        loop = asyncio.get_running_loop()
        try:
            while not watch.gone.done():
                part = await watch.over(loop.run_in_executor(lane, _next, parts, answer))
                if part is _END:
                    break
                async with asyncio.timeout(watch.left):
                    await answer.write(part)
            return answer.end
        except TimeoutError:  # nobody reads the answer, so nobody can be told
            self.counters.failed(watch.limits.timeout())
            raise ClientGone("The client does not read its answer.") from None
        except QueryFailed as error:
            self.counters.failed(error)
            return partial(answer.fail, error)
        # whatever it is, the client must hear of it
        except Exception as error:
            self.counters.errors += 1
            text = f"Code: {NO_CODE}. DB::Exception: {error!r}"
            return partial(answer.fail, QueryFailed(text, NO_CODE))
        finally:
            await loop.run_in_executor(lane, parts.close)


class _Watch:
    """Ends a query whose client left, whose time is over, or whose server stops."""

    def __init__(
        self,
        runner: Runner,
        tag: str,
        gone: asyncio.Future[Any],
        ended: asyncio.Event,
        limits: Limits,
    ) -> None:
        self._runner = runner
        self._tag = tag
        self.gone = gone
        self._ended = ended
        self.limits = limits
        seconds = limits.seconds if limits.strict else 0
        self._until = time.monotonic() + seconds + LATE if seconds else None

    @property
    def left(self) -> float | None:
        """Seconds until the query is ended."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    async def over(self, step: asyncio.Future[Any]) -> Any:
        """Return the next part, once it is there.

        Raises:
            QueryFailed: when the query failed, or was ended here.
        """
        stopped = asyncio.ensure_future(self._ended.wait())
        waiting = (step, self.gone, stopped)
        await asyncio.wait(waiting, timeout=self.left, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if step.done():
            return step.result()
        while not step.done():
            await asyncio.to_thread(self._runner.kill, self._tag)
            await asyncio.wait((step,), timeout=AGAIN)
        try:
            return step.result()
        except QueryFailed as error:
            if self._ended.is_set():
                raise stopping() from error
            raise (error if self.gone.done() else self.limits.timeout()) from error


def _tag() -> str:
    return f"ltrain:{secrets.token_hex(8)}"


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
    headers = {"retry_after": "1"} if error.status in (429, 503) else {}
    await reply(send, error.status, raw, x_clickhouse_exception_code=str(code), **headers)
