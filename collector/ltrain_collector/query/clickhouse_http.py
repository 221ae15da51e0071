"""ClickHouse's HTTP interface over chDB, as far as its usual clients use it.

Each query is independent unless it names a session. Arrow and the row formats are streamed in
bounded memory; an error in mid-stream is sent as ClickHouse sends it, and ends the response. When a
client disconnects, its query is ended.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from opentelemetry.metrics import Meter, Observation
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from ltrain_collector.access import Grant, Keys
from ltrain_collector.errors import (
    ACCESS_DENIED,
    AUTHENTICATION_FAILED,
    NO_CODE,
    HttpError,
    Overloaded,
    QueryFailed,
    code_of,
)
from ltrain_collector.http import MemoryBudget, RequestBuffer
from ltrain_collector.ingest import SECONDS_BOUNDS
from ltrain_collector.query.access import ReaderDatabase, TableFunctions
from ltrain_collector.query.compression import body_too_large, choose_packer
from ltrain_collector.query.execution import QueryRunner
from ltrain_collector.query.executors import NoSlot, NoSlotReason, QueryScheduler, stopping_error
from ltrain_collector.query.limits import Limits, RoleLimits, only_reads
from ltrain_collector.query.response import ResultResponse, error_response
from ltrain_collector.query.sessions import Sessions
from ltrain_collector.query.statement import Request, Statement, parse_request, url_parameters
from ltrain_collector.store import READER_TAG, Engine

KILL_INTERVAL = 0.25
"""Seconds between two attempts to end a query: it may not have started yet."""

LIMIT_GRACE_SECONDS = 1.0
"""Seconds after the time limit of a reader's query at which the watchdog ends it: usually,
ClickHouse's own limit ends it first."""


class QueryWatchdog:
    """Ends one query when its client disconnects, its time limit passes, or the server stops."""

    def __init__(
        self,
        runner: QueryRunner,
        tag: str,
        gone: asyncio.Future[Any],
        stopping: asyncio.Event,
        limits: Limits,
    ) -> None:
        self._runner = runner
        self._tag = tag
        self.gone = gone
        self._stopping = stopping
        self.limits = limits
        strict = limits.strict and limits.seconds
        self._deadline = time.monotonic() + limits.seconds + LIMIT_GRACE_SECONDS if strict else None

    @property
    def remaining(self) -> float | None:
        """Seconds until the query is ended; None if the watchdog has no time limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @property
    def read_timeout(self) -> float | None:
        """Seconds in which the client must read a part of the response."""
        return self.remaining if self.limits.strict else self.limits.seconds or None

    async def wait_for(self, step: asyncio.Future[Any]) -> Any:
        """Wait for the next part of the response and return it."""
        stopped = asyncio.ensure_future(self._stopping.wait())
        waiting = (step, self.gone, stopped)
        await asyncio.wait(waiting, timeout=self.remaining, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if step.done():
            return step.result()
        while not step.done():
            await asyncio.to_thread(self._runner.kill, self._tag)
            await asyncio.wait((step,), timeout=KILL_INTERVAL)
        try:
            return step.result()
        except QueryFailed as error:
            if self._stopping.is_set():
                raise stopping_error() from error
            raise (error if self.gone.done() else self.limits.timeout_error()) from error


MAX_BODY_BYTES = 1 << 30
"""Bytes of one insert, compressed or not."""

MAX_REQUEST_BYTES = 2 << 30
"""Bytes of all requests in memory; further ones are told to retry."""

ADMIN_SLOTS = 8
"""Queries of admins that run at the same time; further ones wait."""
READER_SLOTS = 6
"""Queries of query keys and without a key that run at the same time."""
MAX_READER_BODY_BYTES = 16 << 20
"""Bytes of a request with a query key, or without a key."""

STOP_GRACE_SECONDS = 2.0
"""Seconds that running queries get to finish when the server stops."""

OK = "Ok.\n"
"""The answer to a ping, and to a request without a query."""

_END = object()

Finish = Callable[[], Awaitable[None]]
"""Sends the end of a response."""


class ClickHouseHttp:
    """The ASGI app of the ClickHouse port."""

    def __init__(self, engine: Engine, keys: Keys, roles: RoleLimits, meter: Meter) -> None:
        self._keys = keys
        self._sessions = Sessions(engine)
        self._roles = roles
        self._runner = QueryRunner(
            engine, self._sessions, TableFunctions(engine), ReaderDatabase(engine), roles
        )
        self._reader_scheduler = QueryScheduler("read", READER_SLOTS)
        self._admin_scheduler = QueryScheduler("query", ADMIN_SLOTS)
        self._stopping = asyncio.Event()
        self._budget = MemoryBudget(MAX_REQUEST_BYTES)
        self._instruments = QueryInstruments(meter)

    def close(self) -> None:
        """Close the sessions' connections."""
        self._sessions.close()

    async def stop(self) -> None:
        """Start no more queries, and end the running ones after a short grace period."""
        for scheduler in (self._reader_scheduler, self._admin_scheduler):
            scheduler.close()
        if self._instruments.running:
            await asyncio.sleep(STOP_GRACE_SECONDS)
        self._stopping.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/ping":
            await PlainTextResponse(OK)(scope, receive, send)
            return
        try:
            await self._serve(scope, receive, send)
            return
        except Overloaded as error:
            response = self._refuse(NoSlot(503, NoSlotReason.BYTES, str(error)))
        except HttpError as error:
            response = self._refuse(error)
        except QueryFailed as error:
            self._instruments.count_failure(error)
            response = error_response(error)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        url = scope["query_string"].decode("latin-1")
        fields, http = url_parameters(url), HttpRequest(scope, receive)
        grant = self._authenticate(http.headers, fields)
        limit = MAX_READER_BODY_BYTES if only_reads(grant) else MAX_BODY_BYTES
        request = Request(http.method, fields, http.headers, limit)
        with self._budget.buffer() as buffer:
            await self._read_body(buffer, request, http.stream())
            if url or buffer.size:
                await self._run(request, buffer, grant, receive, send)
            else:
                await PlainTextResponse(OK)(scope, receive, send)

    def _authenticate(self, headers: Headers, fields: dict[str, str]) -> Grant | None:
        grant = self._keys.authenticate(headers, fields)
        if grant is not None and not grant.can_read:
            text = f"A key of role '{grant.role}' cannot read; use query or admin. (ACCESS_DENIED)"
            raise QueryFailed(f"Code: {ACCESS_DENIED}. DB::Exception: {text}", ACCESS_DENIED)
        return grant

    def _refuse(self, error: HttpError) -> PlainTextResponse:
        self._instruments.count_error(error.reason if isinstance(error, NoSlot) else "")
        return _http_error_response(error)

    async def _read_body(
        self, buffer: RequestBuffer, request: Request, parts: AsyncIterator[bytes]
    ) -> None:
        """Read the body, and count each part as it arrives."""
        length = request.headers.get("content-length", "")
        announced = int(length) if length.isdecimal() else 0
        if announced > request.limit:
            raise body_too_large(request.limit)
        self._budget.admit(announced)
        async for part in parts:
            if buffer.size + len(part) > request.limit:
                raise body_too_large(request.limit)
            buffer.add(part)

    async def _run(
        self,
        request: Request,
        buffer: RequestBuffer,
        grant: Grant | None,
        receive: Receive,
        send: Send,
    ) -> None:
        """Parse and run a request in one thread.

        The engine's readers are bound to their thread, and parsing a long request would block the
        event loop.
        """
        gone = asyncio.ensure_future(receive())  # only a disconnect can follow the body
        scheduler = self._reader_scheduler if only_reads(grant) else self._admin_scheduler
        owner, limits = grant.name if grant else "", self._roles.for_grant(grant)
        fields = request.fields
        session_name, timeout = fields.get("session_id", ""), fields.get("session_timeout", "")
        try:
            async with scheduler.slot(owner, limits, gone) as executor:
                work = partial(parse_request, request, buffer, limits)
                statement = await asyncio.get_running_loop().run_in_executor(executor, work)
                response = _make_response(request, statement, send)
                async with self._sessions.acquire(owner, session_name, timeout) as session:
                    tag = _new_tag(limits)
                    parts = self._runner.run(statement, session, grant, tag)
                    watchdog = QueryWatchdog(self._runner, tag, gone, self._stopping, limits)
                    with self._instruments.measure_query():
                        finish = await self._send_parts(parts, watchdog, executor, response)
        finally:
            gone.cancel()
        await finish()  # after it, the client can use the session again

    async def _send_parts(
        self,
        parts: Generator[Any, None, None],
        watchdog: QueryWatchdog,
        executor: ThreadPoolExecutor,
        response: ResultResponse,
    ) -> Finish:
        """Send the response except for its end, and return what sends the end."""
        loop = asyncio.get_running_loop()
        try:
            while not watchdog.gone.done():
                part = await watchdog.wait_for(
                    loop.run_in_executor(executor, _next_part, parts, response)
                )
                if part is _END:
                    break
                async with asyncio.timeout(watchdog.read_timeout):
                    await response.write(part)
            return response.end
        except TimeoutError:  # nobody reads the response, so no error can be sent
            self._instruments.count_failure(watchdog.limits.timeout_error())
            raise ClientDisconnect("The client does not read its response.") from None
        except QueryFailed as error:
            self._instruments.count_failure(error)
            return partial(response.fail, error)
        # whatever it is, the client must get the error
        except Exception as error:
            self._instruments.count_error()
            text = f"Code: {NO_CODE}. DB::Exception: {error!r}"
            return partial(response.fail, QueryFailed(text, NO_CODE))
        finally:
            await loop.run_in_executor(executor, parts.close)


def _new_tag(limits: Limits) -> str:
    return f"{READER_TAG if limits.strict else 'ltrain:'}{secrets.token_hex(8)}"


def _next_part(parts: Generator[Any, None, None], response: ResultResponse) -> Any:
    part = next(parts, _END)
    return part if part is _END else response.pack(part)


def _make_response(request: Request, statement: Statement, send: Send) -> ResultResponse:
    off = request.fields.get("enable_http_compression") == "0"
    encoding, packs = choose_packer("" if off else request.headers.get("accept-encoding", ""))
    return ResultResponse(send, statement.form, statement.query_id, encoding, packs)


def _http_error_response(error: HttpError) -> PlainTextResponse:
    text = str(error)
    code = code_of(text)
    if error.status in (401, 403) and "Code: " not in text:
        code = AUTHENTICATION_FAILED
        text = f"Code: {code}. DB::Exception: {text} (AUTHENTICATION_FAILED)"
    headers = {"retry-after": "1"} if error.status in (429, 503) else {}
    headers["x-clickhouse-exception-code"] = str(code)
    return PlainTextResponse(f"{text}\n", error.status, headers)


REASONS = {
    **{159: "seconds", 158: "rows", 241: "memory", 396: "size", 394: "ended"},
    **{306: "syntax", 718: "syntax", 452: "setting", 497: "denied"},
}
"""Why a query was refused or ended, by ClickHouse's error code."""


class QueryInstruments:
    """Counts queries, their seconds and their errors."""

    def __init__(self, meter: Meter) -> None:
        self.running = 0
        """Queries that have started and not ended."""
        self._seconds = meter.create_histogram(
            "ltrain_collector_query_seconds",
            "s",
            "Seconds from the start of a query or insert of the ClickHouse port to the last part "
            "of its response; the count is the number of queries.",
            explicit_bucket_boundaries_advisory=SECONDS_BOUNDS,
        )
        self._errors = meter.create_counter(
            "ltrain_collector_query_errors_total",
            description="Queries of the ClickHouse port that failed or were refused.",
        )
        self._errors.add(0)
        self._refused = meter.create_counter(
            "ltrain_collector_queries_refused_total",
            description="Queries of the ClickHouse port that a limit ended (seconds, rows, memory, "
            "size, syntax), that their key does not allow (denied, setting), that got no slot "
            "(waiting, patience, stopping) or no memory (bytes), or that ended because the client "
            "disconnected or the server stopped (ended).",
        )
        meter.create_observable_gauge(
            "ltrain_collector_queries_running",
            [lambda _: [Observation(self.running)]],
            description="Queries of the ClickHouse port that are running.",
        )

    @contextmanager
    def measure_query(self) -> Iterator[None]:
        """Count the query that runs in the context, and its seconds."""
        self.running += 1
        begun = time.monotonic()
        try:
            yield
        finally:
            self.running -= 1
            self._seconds.record(time.monotonic() - begun)

    def count_error(self, reason: str = "") -> None:
        """Count a query that failed; with a reason if it was refused or ended."""
        self._errors.add(1)
        if reason:
            self._refused.add(1, {"reason": reason})

    def count_failure(self, error: QueryFailed) -> None:
        """Count a query that the engine failed."""
        self.count_error(REASONS.get(error.code, ""))
