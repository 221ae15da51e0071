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
    headers_of,
    parts_of,
    reply,
    too_long,
)
from ltrain_collector.engine import Engine
from ltrain_collector.errors import NO_CODE, QueryFailed, code_of
from ltrain_collector.grants import Grant
from ltrain_collector.ingest.budget import Arrival, Budget
from ltrain_collector.ingest.refusals import Overloaded
from ltrain_collector.keys import Keys
from ltrain_collector.query.access import DENIED, Reader
from ltrain_collector.query.answer import Answer, refuse
from ltrain_collector.query.compression import packer
from ltrain_collector.query.counters import QueryCounters
from ltrain_collector.query.lanes import Lanes, NoLane, Reason
from ltrain_collector.query.limits import Roles, only_reads
from ltrain_collector.query.outside import Outside
from ltrain_collector.query.running import Runner
from ltrain_collector.query.sessions import Sessions
from ltrain_collector.query.statement import Request, Statement, fields_of, read
from ltrain_collector.query.watch import Watch

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

MOMENT = 2.0
"""Seconds that queries have to end by themselves when the server stops."""

UNAUTHENTICATED = 516
"""ClickHouse's AUTHENTICATION_FAILED."""

_END = object()

Last = Callable[[], Awaitable[None]]
"""Sends what ends an answer."""


class Facade:
    """The ASGI app of the ClickHouse port."""

    def __init__(self, engine: Engine, keys: Keys, roles: Roles) -> None:
        self._keys = keys
        self._sessions = Sessions(engine)
        self._roles = roles
        reader = Reader(engine, self._roles.reader)
        self._runner = Runner(engine, self._sessions, reader, Outside(engine), self._roles)
        self._readers = Lanes("read", READERS)
        self._others = Lanes("query", LANES)
        self._ended = asyncio.Event()
        self._budget = Budget(HELD)
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
            request = Request(scope["method"], fields, headers, limit)
            with Arrival(self._budget) as arrival:
                await self._arrive(arrival, request, receive)
                if url or arrival.size:
                    await self._answer(request, arrival, grant, receive, send)
                else:
                    await reply(send, 200, b"Ok.\n")
        except Overloaded as error:
            await self._refuse(send, NoLane(503, Reason.BYTES, str(error)))
        except Refused as error:
            await self._refuse(send, error)
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

    async def _refuse(self, send: Send, error: Refused) -> None:
        self.counters.errors += 1
        if isinstance(error, NoLane):
            self.counters.refused[error.reason] += 1
        await _refused(send, error)

    async def _arrive(self, arrival: Arrival, request: Request, receive: Receive) -> None:
        """Read the body, each part counted as it comes."""
        announced = request.headers.get("content-length", "")
        coming = int(announced) if announced.isdecimal() else 0
        if coming > request.limit:
            raise too_long(request.limit)
        self._budget.admit(coming)
        async for part in parts_of(receive):
            if arrival.size + len(part) > request.limit:
                raise too_long(request.limit)
            arrival.add(part)

    async def _answer(
        self,
        request: Request,
        arrival: Arrival,
        grant: Grant | None,
        receive: Receive,
        send: Send,
    ) -> None:
        """Run in one lane from beginning to end: the engine's readers are bound to their thread,
        and reading a long request would hold up the event loop."""
        gone = asyncio.ensure_future(receive())  # after the body only a disconnect can come
        lanes = self._readers if only_reads(grant) else self._others
        owner, limits = grant.name if grant else "", self._roles.of(grant)
        fields = request.fields
        named, timeout = fields.get("session_id", ""), fields.get("session_timeout", "")
        check = fields.get("session_check") == "1"
        try:
            async with lanes.lane(owner, limits, gone) as lane:
                work = partial(read, request, arrival, limits)
                statement = await asyncio.get_running_loop().run_in_executor(lane, work)
                answer = _answer_to(request, statement, send)
                async with self._sessions.held(owner, named, timeout, check) as session:
                    tag = _tag()
                    parts = self._runner.run(statement, session, grant, tag)
                    watch = Watch(self._runner, tag, gone, self._ended, limits)
                    last = await self._counted(self._parts(parts, watch, lane, answer))
        finally:
            gone.cancel()
        await last()  # who has read this may use the session again

    async def _counted(self, running: Awaitable[Last]) -> Last:
        self.counters.running += 1
        begun = time.monotonic()
        try:
            return await running
        finally:
            self.counters.running -= 1
            self.counters.seconds.add(time.monotonic() - begun)

    async def _parts(
        self,
        parts: Generator[Any, None, None],
        watch: Watch,
        lane: ThreadPoolExecutor,
        answer: Answer,
    ) -> Last:
        """Send all but what ends the answer, and return that."""
        loop = asyncio.get_running_loop()
        try:
            while not watch.gone.done():
                part = await watch.over(loop.run_in_executor(lane, _next, parts, answer))
                if part is _END:
                    break
                async with asyncio.timeout(watch.patience):
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


def _tag() -> str:
    return f"ltrain:{secrets.token_hex(8)}"


def _next(parts: Generator[Any, None, None], answer: Answer) -> Any:
    part = next(parts, _END)
    return part if part is _END else answer.pack(part)


def _answer_to(request: Request, statement: Statement, send: Send) -> Answer:
    off = request.fields.get("enable_http_compression") == "0"
    encoding, packs = packer("" if off else request.headers.get("accept-encoding", ""))
    return Answer(send, statement.form, statement.query_id, encoding, packs)


async def _refused(send: Send, error: Refused) -> None:
    text = str(error)
    code = code_of(text)
    if error.status in (401, 403) and "Code: " not in text:
        code = UNAUTHENTICATED
        text = f"Code: {code}. DB::Exception: {text} (AUTHENTICATION_FAILED)"
    raw = f"{text}\n".encode()
    headers = {"retry_after": "1"} if error.status in (429, 503) else {}
    await reply(send, error.status, raw, x_clickhouse_exception_code=str(code), **headers)
