"""OTLP over HTTP: a request is answered once its records can be read.

`GET /health` returns the collector's health without a key; `GET /metrics` is for Prometheus.
"""

import asyncio
import json
from dataclasses import dataclass

from ltrain_collector.access import Grant, Keys
from ltrain_collector.http import (
    ClientGone,
    HttpError,
    Malformed,
    OtlpError,
    Receive,
    RequestBuffer,
    Scope,
    Send,
    TooSlow,
    Unsupported,
    body_parts,
    request_headers,
    send_response,
)
from ltrain_collector.ingest import (
    BODY_TIMEOUT,
    MAX_BODY_BYTES,
    MAX_JSON_BYTES,
    RETRY_AFTER,
    Intake,
    error_status,
    rpc_status,
    serialize_message,
    too_large,
)
from ltrain_collector.metrics import Health, exposition
from ltrain_collector.signals import SIGNALS, Signal

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

PATHS = {signal.path: signal for signal in SIGNALS}

RPC_CODES = {401: 16, 403: 7, 404: 5, 405: 12, 503: 14}
"""gRPC codes by HTTP status, for the Status message in every error response of OTLP."""


class Receiver:
    """The ASGI app of the OTLP port."""

    def __init__(self, intake: Intake, keys: Keys, health: Health) -> None:
        self._intake = intake
        self._keys = keys
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = request_headers(scope)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            method, path = scope["method"], scope["path"].rstrip("/")
            if method in ("GET", "HEAD") and path in ("/health", ""):
                report = self._health.report()
                status = 200 if report["status"] == "ok" else 503
                await send_response(send, status, json.dumps(report).encode() + b"\n", JSON)
            elif method in ("GET", "HEAD") and path == "/metrics":
                self._keys.authorize_read(headers)
                text = exposition.render(await self._health.monitor.state())
                await send_response(send, 200, text, exposition.CONTENT_TYPE)
            elif method == "POST" and path in PATHS:
                grant = self._keys.authorize_ingest(headers)
                await self._export(_Export(PATHS[path], headers, kind, grant), receive, send)
            else:
                self._keys.authenticate(headers)
                raise _not_here(method, scope["path"])
        except HttpError as error:
            as_json = kind != PROTOBUF
            body = serialize_message(
                rpc_status(RPC_CODES.get(error.status, 2), str(error)), as_json
            )
            await send_response(send, error.status, body, JSON if as_json else PROTOBUF)
        except ClientGone:
            return

    async def _export(self, export: "_Export", receive: Receive, send: Send) -> None:
        signal, headers, as_json = export.signal, export.headers, export.as_json
        try:
            with RequestBuffer(self._intake.budget) as buffer:
                _check_kind(export.kind)
                await self._read(
                    buffer, headers, MAX_JSON_BYTES if as_json else MAX_BODY_BYTES, receive
                )
                encoding = headers.get("content-encoding", "").strip().lower()
                answer = await self._intake.ingest(signal, buffer, encoding, as_json, export.grant)
        except OtlpError as error:
            self._intake.count_error(signal, error)
            more = {"retry_after": str(RETRY_AFTER)} if error.retryable else {}
            if isinstance(error, TooSlow):
                more["connection"] = "close"
            body = serialize_message(error_status(error), as_json)
            await send_response(send, error.status, body, JSON if as_json else PROTOBUF, **more)
            return
        await send_response(send, 200, serialize_message(answer, as_json), export.kind)

    async def _read(
        self, buffer: RequestBuffer, headers: dict[str, str], limit: int, receive: Receive
    ) -> None:
        announced = _length(headers)
        if announced > limit:
            raise too_large(limit)
        self._intake.budget.admit(announced)
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                async for part in body_parts(receive):
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
    headers: dict[str, str]
    kind: str
    grant: Grant | None

    @property
    def as_json(self) -> bool:
        """Whether the response is JSON, as it also is for unsupported content types."""
        return self.kind != PROTOBUF


def _length(headers: dict[str, str]) -> int:
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


def _not_here(method: str, path: str) -> HttpError:
    if path.rstrip("/") in PATHS:
        return HttpError(405, f"{method} {path} is not served; use POST {path}.")
    served = ", ".join(f"POST {path}" for path in PATHS)
    return HttpError(
        404, f"{method} {path} is not served; use {served}, GET /health or GET /metrics."
    )
