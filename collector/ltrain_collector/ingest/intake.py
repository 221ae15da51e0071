"""Store OTLP requests, for the HTTP and the gRPC receiver.

Threads decode the bodies, the rows of several requests are inserted together, and a request is
answered once its rows can be read.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial

from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.metrics import Meter

from ltrain_collector import schema
from ltrain_collector.access import Grant
from ltrain_collector.errors import OtlpError
from ltrain_collector.forward import Tee
from ltrain_collector.http import MAX_REQUEST_BYTES, MemoryBudget, RequestBuffer, inflate
from ltrain_collector.ingest.budgets import Budget, Budgets, RefusalLog
from ltrain_collector.ingest.commit import WINDOW, GroupCommit, RecentRequests
from ltrain_collector.ingest.instruments import IngestInstruments
from ltrain_collector.signals import LOGS, METRICS, TABLES, Rows, Signal
from ltrain_collector.store import Engine
from ltrain_instrument.errors import LtrainError

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 << 20
"""Bytes of one decompressed request: the most that OpenTelemetry's exporters send."""

MAX_JSON_BYTES = 16 << 20
"""The same for JSON, which takes many times its size in memory."""

BODY_TIMEOUT = 10.0
"""Seconds in which a body must arrive; OpenTelemetry's exporters give up after as many."""

LARGE_BODY_BYTES = 4 << 20
"""Bytes of a received body above which a separate thread decodes it, so that it does not delay
small ones; an eighth of it for JSON and compressed bodies."""


class Intake:
    """Stores the requests of both receivers; used from one event loop."""

    def __init__(
        self,
        engine: Engine,
        meter: Meter,
        window: float = WINDOW,
        limit: int = MAX_REQUEST_BYTES,
        budgets: Budgets | None = None,
        tee: Tee | None = None,
    ) -> None:
        """Store into `engine`, then append to `tee`.

        By default, senders have the budgets of the environment.

        Raises:
            BadSetting: one of them is invalid.
        """
        self._engine = engine
        self._budgets = budgets or Budgets.from_environment(engine.directory)
        self._tee = tee if tee is not None and tee.is_open else None
        self.budget = MemoryBudget(limit)
        self.instruments = IngestInstruments(meter)
        self._commits = {
            table: GroupCommit(partial(self._insert, table), table, self.instruments, window)
            for table in TABLES
        }
        self._recent_requests = RecentRequests()
        self._refusals = RefusalLog()
        self._logging = set[asyncio.Task[None]]()
        self._writers: list[asyncio.Task[None]] = []
        self._decoders = {
            large: ThreadPoolExecutor(1, "ltrain-decode-large" if large else "ltrain-decode")
            for large in (False, True)
        }

    async def ingest(
        self,
        signal: Signal,
        buffer: RequestBuffer,
        encoding: str = "",
        as_json: bool = False,
        grant: Grant | None = None,
    ) -> Message:
        """Store a request and return the response; `grant` is what its key allows.

        Raises:
            OtlpError: it is not stored.
        """
        self._start()
        sender = self._budgets.of(grant)
        large = buffer.size * (8 if as_json or encoding else 1) > LARGE_BODY_BYTES
        forwarder = "" if self._tee is None else self._tee.id
        work = partial(_encode, signal, buffer, encoding, as_json, grant, sender, forwarder)
        decoder = self._decoders[large]
        rows, digest = await asyncio.get_running_loop().run_in_executor(decoder, work)
        await self._commit(rows)
        if self._tee is not None and rows.returned:
            self._tee.count_returned(signal)
        if self._tee is not None and rows.request:
            await self._tee.append(signal, rows.request)
        repeated = self._recent_requests.add(digest)
        self.instruments.count_stored(signal, rows, repeated, buffer.age)
        return signal.make_response(rows)

    def buffer(self, grant: Grant | None) -> AbstractContextManager[RequestBuffer]:
        """Return the buffer of one request; bound keys share a part of the memory each."""
        return self.budget.buffer(grant.name if grant is not None and grant.bound else "")

    def max_bytes(self, grant: Grant | None, size: int, as_json: bool = False) -> int:
        """Return the size limit of a request that announces `size` bytes.

        Raises:
            OtlpError: its sender may not store as much.
        """
        limit = MAX_JSON_BYTES if as_json else MAX_BODY_BYTES
        sender = self._budgets.of(grant)
        if sender is None:
            return limit
        sender.require(size)
        return sender.max_bytes(limit)

    async def store_self_metrics(self, metrics: Message) -> None:
        """Store the collector's own metrics, without counting them as ingested.

        Raises:
            QueryFailed: the engine could not store them.
        """
        await self._store_own(METRICS, metrics)

    def count_error(self, signal: Signal, error: OtlpError, grant: Grant | None) -> None:
        """Count a request that was not stored, and store a log record about its sender."""
        self.instruments.refused.add(1, {"signal": signal.name, "reason": error.reason})
        if record := self._refusals.add(error, grant):
            task = asyncio.create_task(self._log_refusal(record))
            self._logging.add(task)
            task.add_done_callback(self._logging.discard)

    async def _log_refusal(self, record: Message) -> None:
        try:
            await self._store_own(LOGS, record)
        except LtrainError as error:  # the refusal is counted
            logger.warning("ltrain: the record of a refused request is not stored: %s", error)

    async def _store_own(self, signal: Signal, message: Message) -> None:
        for table, block in signal.encode_local(message).blocks.items():
            await asyncio.to_thread(self._insert, table, [block.payload])

    async def _commit(self, rows: Rows) -> None:
        commits = [self._commits[table].commit(block) for table, block in rows.blocks.items()]
        if len(commits) == 1:
            await commits[0]  # the usual case, without a task
            return
        for error in await asyncio.gather(*commits, return_exceptions=True):
            if error:
                raise error

    def _start(self) -> None:
        if not self._writers:
            self._writers = [asyncio.create_task(one.run()) for one in self._commits.values()]

    def _insert(self, table: str, payloads: list[bytes]) -> None:
        into = f"INSERT INTO {schema.insert_target(table)}"
        self._engine.insert_first(into, "RowBinary", payloads)


def _encode(
    signal: Signal,
    buffer: RequestBuffer,
    encoding: str,
    as_json: bool,
    grant: Grant | None,
    sender: Budget | None,
    forwarder: str,
) -> tuple[Rows, int]:
    body = buffer.body()
    limit = MAX_JSON_BYTES if as_json else MAX_BODY_BYTES
    plain = inflate(body, encoding, limit if sender is None else sender.max_bytes(limit))
    if plain is not body:
        buffer.resize(len(body) + len(plain))
    if sender is None:
        rows = signal.encode_body(plain, as_json, grant, forwarder=forwarder)
    else:
        sender.require(len(plain))
        rows = signal.encode_body(plain, as_json, grant, sender.limits.shape, forwarder)
        sender.charge(max(rows.size, len(plain)), rows.count + rows.rejected)
    buffer.resize(rows.size + len(rows.request))
    return rows, hash((signal.name, body))


def serialize_message(message: Message, as_json: bool) -> bytes:
    if as_json:
        return str(json_format.MessageToJson(message, indent=None)).encode()
    return bytes(message.SerializeToString())


def rpc_status(code: int, message: str, retry_after: int = 0) -> Message:
    """Return a `google.rpc.Status`, with the seconds until a retry unless they are 0."""
    status = status_pb2.Status(code=code, message=message)
    if retry_after:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.seconds = retry_after
        status.details.add().Pack(retry)
    return status


def error_status(error: OtlpError) -> Message:
    """Return the status of a request that was not stored."""
    return rpc_status(error.code, str(error), error.retry_after if error.retryable else 0)
