"""OTLP over HTTP: a request is answered once its records can be read.

`POST /v1/feedback` stores rewards of executions that ended before. `GET /health` returns the
collector's health without a key; `GET /metrics` is for Prometheus.
"""

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ltrain_collector.access import Grant, Keys
from ltrain_collector.errors import HttpError, Malformed, OtlpError, TooSlow, Unsupported
from ltrain_collector.feedback import parse_feedback, read_times, to_request
from ltrain_collector.http import RequestBuffer, too_large
from ltrain_collector.ingest import (
    BODY_TIMEOUT,
    Intake,
    error_status,
    rpc_status,
    serialize_message,
)
from ltrain_collector.metrics import CONTENT_TYPE, Health
from ltrain_collector.signals import SIGNALS, TRACES, Signal
from ltrain_collector.store import Store

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

PATHS = {signal.path: signal for signal in SIGNALS}

FEEDBACK_PATH = "/v1/feedback"
MAX_FEEDBACK_BYTES = 1 << 20


class Receiver:
    """The ASGI app of the OTLP port."""

    def __init__(self, intake: Intake, keys: Keys, health: Health, store: Store) -> None:
        self._intake = intake
        self._store = store
        self._keys = keys
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            response = await self._respond(Request(scope, receive))
            await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        method, path = request.method, request.scope["path"].rstrip("/")
        try:
            if method in ("GET", "HEAD") and path in ("/health", ""):
                report = self._health.report()
                status = 200 if report["status"] == "ok" else 503
                return Response(json.dumps(report) + "\n", status, media_type=JSON)
            if method in ("GET", "HEAD") and path == "/metrics":
                self._keys.authorize_read(request.headers)
                text = await self._health.monitor.exposition()
                return Response(text, media_type=CONTENT_TYPE)
            if method == "POST" and path in PATHS:
                grant = self._keys.authorize_ingest(request.headers)
                return await self._export(_Export(PATHS[path], request, kind, grant))
            if method == "POST" and path == FEEDBACK_PATH:
                grant = self._keys.authorize_ingest(request.headers)
                return await self._feedback(_Export(TRACES, request, kind, grant))
            self._keys.authenticate(request.headers)
            raise _not_here(method, request.scope["path"])
        except HttpError as error:
            return _message_response(rpc_status(error.code, str(error)), error.status, kind)

    async def _export(self, export: "_Export") -> Response:
        signal, headers, as_json = export.signal, export.request.headers, export.as_json
        try:
            with self._intake.buffer(export.grant) as buffer:
                _check_kind(export.kind)
                announced = _length(headers)
                limit = self._intake.max_bytes(export.grant, announced, export.as_json)
                await self._read(buffer, export.request, limit)
                encoding = headers.get("content-encoding", "").strip().lower()
                answer = await self._intake.ingest(signal, buffer, encoding, as_json, export.grant)
        except OtlpError as error:
            return self._refusal(signal, error, export.kind, export.grant)
        return _message_response(answer, 200, export.kind)

    async def _feedback(self, export: "_Export") -> Response:
        try:
            if export.kind != JSON or export.request.headers.get("content-encoding"):
                raise Unsupported(f"Send feedback as uncompressed JSON: Content-Type: {JSON}.")
            with self._intake.buffer(export.grant) as buffer:
                await self._read(buffer, export.request, MAX_FEEDBACK_BYTES)
                feedback = parse_feedback(buffer.body())
            times = await asyncio.to_thread(read_times, self._store, feedback)
            with self._intake.buffer(export.grant) as buffer:
                buffer.add(to_request(feedback, time.time_ns(), times).SerializeToString())
                answer = await self._intake.ingest(TRACES, buffer, grant=export.grant)
        except OtlpError as error:
            return self._refusal(TRACES, error, JSON, export.grant)
        if answer.HasField("partial_success"):
            raise HttpError(403, f"The feedback was not stored: {_reason(answer)}.")
        return Response(json.dumps({"stored": len(feedback)}) + "\n", media_type=JSON)

    def _refusal(
        self, signal: Signal, error: OtlpError, kind: str, grant: Grant | None
    ) -> Response:
        """Count a request that is not stored, and return its response."""
        self._intake.count_error(signal, error, grant)
        more = {"retry-after": str(error.retry_after)} if error.retryable else {}
        if isinstance(error, TooSlow):
            more["connection"] = "close"
        return _message_response(error_status(error), error.status, kind, more)

    async def _read(self, buffer: RequestBuffer, request: Request, limit: int) -> None:
        announced = _length(request.headers)
        if announced > limit:
            raise too_large(limit)
        self._intake.budget.admit(announced)
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                async for part in request.stream():
                    if buffer.size + len(part) > limit:
                        raise too_large(limit)
                    buffer.add(part)
        except TimeoutError as error:
            raise TooSlow(
                f"The body did not end within {BODY_TIMEOUT:.0f} seconds; {buffer.size} bytes "
                "arrived. Send less at a time."
            ) from error


@dataclass(frozen=True, slots=True)
class _Export:
    """The parts of a request that are known before its body is read."""

    signal: Signal
    request: Request
    kind: str
    grant: Grant | None

    @property
    def as_json(self) -> bool:
        """Whether the response is JSON, as it also is for unsupported content types."""
        return self.kind != PROTOBUF


def _message_response(
    message: Message, status: int, kind: str, headers: dict[str, str] | None = None
) -> Response:
    """Return a response in the request's content type, in JSON if that is not supported."""
    as_json = kind != PROTOBUF
    body = serialize_message(message, as_json)
    return Response(body, status, headers, media_type=JSON if as_json else PROTOBUF)


def _length(headers: Headers) -> int:
    value = headers.get("content-length", "0")
    if not value.isdecimal() or len(value) > 18:
        raise Malformed(f"Content-Length '{value[:40]}' is not a number of bytes.")
    return int(value)


def _check_kind(kind: str) -> None:
    if kind not in (PROTOBUF, JSON):
        raise Unsupported(
            f"Content-Type '{kind}' is not supported; send {PROTOBUF} "
            f"(OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf) or {JSON}."
        )


def _reason(response: Any) -> str:
    return str(response.partial_success.error_message)


def _not_here(method: str, path: str) -> HttpError:
    if path.rstrip("/") in (*PATHS, FEEDBACK_PATH):
        return HttpError(405, f"{method} {path} is not served; use POST {path}.")
    served = ", ".join(f"POST {path}" for path in (*PATHS, FEEDBACK_PATH))
    return HttpError(
        404, f"{method} {path} is not served; use {served}, GET /health or GET /metrics."
    )
