"""OTLP over HTTP: spans in, answered once they are readable. `GET /health` says how it goes."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ltrain_collector import schema
from ltrain_collector.asgi import (
    ClientGone,
    Receive,
    Refused,
    Scope,
    Send,
    body_of,
    gunzip,
    headers_of,
    reply,
)
from ltrain_collector.engine import Engine
from ltrain_collector.errors import BadRequest, QueryFailed
from ltrain_collector.ingest.commit import WINDOW, GroupCommit, Overloaded
from ltrain_collector.ingest.traces import Rows, encode
from ltrain_collector.keys import Grant, Keys

PROTOBUF = "application/x-protobuf"

BODY = 64 << 20
"""Bytes of one request, once unpacked; OpenTelemetry's exporters send 512 spans at most."""

INTO = f"INSERT INTO {schema.TRACES} ({schema.COLUMN_LIST})"


class Receiver:
    """The ASGI app of the OTLP port."""

    def __init__(self, engine: Engine, keys: Keys, window: float = WINDOW) -> None:
        self._engine = engine
        self._keys = keys
        self._commit = GroupCommit(self._insert, window)
        self._decoder = ThreadPoolExecutor(1, "ltrain-decode")
        self._task: asyncio.Task[None] | None = None
        self.spans = 0
        self.rejected = 0
        self.requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = headers_of(scope)
            route = (scope["method"], scope["path"].rstrip("/"))
            if route == ("GET", "/health") and self._keys.guarded:
                await self._health(send)  # who probes has no key
                return
            grant = self._keys.enter(headers)
            if grant is not None and not grant.ingests:
                raise Refused(403, f"A key of role '{grant.role}' does not put spans in.")
            if route == ("POST", "/v1/traces"):
                await self._traces(headers, grant, receive, send)
            elif route in (("GET", "/health"), ("HEAD", "/health"), ("GET", "")):
                await self._health(send)
            else:
                raise _not_here(scope["method"], scope["path"])
        except Refused as error:
            await reply(send, error.status, f"{error}\n".encode())
        except BadRequest as error:
            await reply(send, 400, f"{error}\n".encode())
        except (QueryFailed, Overloaded) as error:
            # 503 is what an OTLP client tries again
            await reply(send, 503, f"{error}\n".encode(), retry_after="1")
        except ClientGone:
            return

    async def _traces(
        self, headers: dict[str, str], grant: Grant | None, receive: Receive, send: Send
    ) -> None:
        _check_kind(headers)
        body = await body_of(receive, BODY)
        packed = headers.get("content-encoding") == "gzip"
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._decoder, _rows, body, packed, grant)
        if rows.count:
            self._task = self._task or asyncio.create_task(self._commit.run())
            await self._commit.commit(rows.payload)
        self.requests += 1
        self.spans += rows.count
        self.rejected += rows.rejected
        await reply(send, 200, _answer(rows), PROTOBUF)

    def _insert(self, payloads: list[bytes]) -> None:
        self._engine.insert(INTO, "RowBinary", payloads)

    async def _health(self, send: Send) -> None:
        state = {
            "status": "ok",
            "requests": self.requests,
            "spans": self.spans,
            "rejected": self.rejected,
            "inserts": self._commit.inserts,
            "failures": self._commit.failures,
        }
        await reply(send, 200, json.dumps(state).encode() + b"\n", "application/json")


def _rows(body: bytes, packed: bool, grant: Grant | None) -> Rows:
    return encode(gunzip(body, BODY) if packed else body, grant)


def _answer(rows: Rows) -> bytes:
    answer = ExportTraceServiceResponse()
    if rows.rejected:
        answer.partial_success.rejected_spans = rows.rejected
        answer.partial_success.error_message = rows.reason
    return bytes(answer.SerializeToString())


def _check_kind(headers: dict[str, str]) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip()
    if kind != PROTOBUF:
        raise Refused(
            415,
            f"Content-Type '{kind}' is not read here; send {PROTOBUF} "
            "(OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf).",
        )
    encoding = headers.get("content-encoding", "")
    if encoding not in ("", "identity", "gzip"):
        raise Refused(415, f"Content-Encoding '{encoding}' is not read here; send gzip or none.")


def _not_here(method: str, path: str) -> Refused:
    if path in ("/v1/logs", "/v1/metrics"):
        signal = path.rpartition("/")[2].upper()
        return Refused(
            404,
            f"This store keeps traces only. Set OTEL_{signal}_EXPORTER=none, or send elsewhere.",
        )
    return Refused(404, f"{method} {path} is not served here; POST /v1/traces and GET /health are.")
