"""OTLP over HTTP: requests in, answered once they are readable.

`GET /health` says how it goes, to whoever asks; `GET /metrics` tells Prometheus all of it.
"""

import asyncio
import json
from dataclasses import dataclass

from ltrain_collector.asgi import (
    ClientGone,
    Receive,
    Refused,
    Scope,
    Send,
    headers_of,
    parts_of,
    reply,
)
from ltrain_collector.grants import Grant
from ltrain_collector.ingest.answers import refused, serialised, status_of
from ltrain_collector.ingest.budget import Arrival
from ltrain_collector.ingest.inflate import too_large
from ltrain_collector.ingest.intake import BODY, BODY_SECONDS, JSON_BODY, READY, Intake
from ltrain_collector.ingest.refusals import Malformed, Refusal, TooSlow, Unsupported
from ltrain_collector.ingest.signals import SIGNALS, Signal
from ltrain_collector.keys import Keys
from ltrain_collector.watch import exposition
from ltrain_collector.watch.health import Health

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

PATHS = {signal.path: signal for signal in SIGNALS}

RPC_CODES = {401: 16, 403: 7, 404: 5, 405: 12, 503: 14}
"""gRPC's numbers of HTTP's, for the Status that OTLP wants in every answer that is an error."""


class Receiver:
    """The ASGI app of the OTLP port."""

    def __init__(self, intake: Intake, keys: Keys, health: Health) -> None:
        self._intake = intake
        self._keys = keys
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            method, path = scope["method"], scope["path"].rstrip("/")
            if method in ("GET", "HEAD") and path in ("/health", ""):
                told = self._health.told()
                status = 200 if told["status"] == "ok" else 503
                await reply(send, status, json.dumps(told).encode() + b"\n", JSON)
            elif method in ("GET", "HEAD") and path == "/metrics":
                self._keys.reading(headers)
                text = exposition.text(await self._health.watched.state())
                await reply(send, 200, text, exposition.KIND)
            elif method == "POST" and path in PATHS:
                grant = self._keys.ingesting(headers)
                await self._export(_Export(PATHS[path], headers, kind, grant), receive, send)
            else:
                self._keys.enter(headers)
                raise _not_here(method, scope["path"])
        except Refused as error:
            as_json = kind != PROTOBUF
            body = serialised(status_of(RPC_CODES.get(error.status, 2), str(error)), as_json)
            await reply(send, error.status, body, JSON if as_json else PROTOBUF)
        except ClientGone:
            return

    async def _export(self, export: "_Export", receive: Receive, send: Send) -> None:
        signal, headers, as_json = export.signal, export.headers, export.as_json
        try:
            with Arrival(self._intake.budget) as arrival:
                _check_kind(export.kind)
                await self._read(arrival, headers, JSON_BODY if as_json else BODY, receive)
                encoding = headers.get("content-encoding", "").strip().lower()
                answer = await self._intake.take(signal, arrival, encoding, as_json, export.grant)
        except Refusal as error:
            self._intake.refuse(signal, error)
            more = {"retry_after": str(READY)} if error.again else {}
            if isinstance(error, TooSlow):
                more["connection"] = "close"
            body = serialised(refused(error), as_json)
            await reply(send, error.status, body, JSON if as_json else PROTOBUF, **more)
            return
        await reply(send, 200, serialised(answer, as_json), export.kind)

    async def _read(
        self, arrival: Arrival, headers: dict[str, str], limit: int, receive: Receive
    ) -> None:
        announced = _length(headers)
        if announced > limit:
            raise too_large(limit)
        self._intake.budget.admit(announced)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in parts_of(receive):
                    if arrival.size + len(part) > limit:
                        raise too_large(limit)
                    arrival.add(part)
        except TimeoutError as error:
            raise TooSlow(
                f"{arrival.size} bytes came in {BODY_SECONDS:.0f} seconds, and no end."
            ) from error


@dataclass(frozen=True, slots=True)
class _Export:
    """What is known of a request before its body is read."""

    signal: Signal
    headers: dict[str, str]
    kind: str
    grant: Grant | None

    @property
    def as_json(self) -> bool:
        """What is neither is refused in JSON, which people read."""
        return self.kind != PROTOBUF


def _length(headers: dict[str, str]) -> int:
    given = headers.get("content-length", "0")
    if not given.isdecimal() or len(given) > 18:
        raise Malformed(f"Content-Length '{given[:40]}' is not a number of bytes.")
    return int(given)


def _check_kind(kind: str) -> None:
    if kind not in (PROTOBUF, JSON):
        raise Unsupported(
            f"Content-Type '{kind}' is not read here; send {PROTOBUF} "
            f"(OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf) or {JSON}."
        )


def _not_here(method: str, path: str) -> Refused:
    if path.rstrip("/") in PATHS:
        return Refused(405, f"{method} {path} is not served here; POST {path} is.")
    served = ", ".join(f"POST {path}" for path in PATHS)
    return Refused(
        404, f"{method} {path} is not served here; {served}, GET /health and GET /metrics are."
    )
