"""OTLP over HTTP: requests in, answered once they are readable. `GET /health` says how it goes."""

import asyncio
import json

from ltrain_collector.asgi import (
    ClientGone,
    Receive,
    Refused,
    Scope,
    Send,
    guard,
    headers_of,
    parts_of,
    reply,
)
from ltrain_collector.ingest.answers import refused, serialised, status_of
from ltrain_collector.ingest.budget import Arrival
from ltrain_collector.ingest.inflate import too_large
from ltrain_collector.ingest.intake import BODY, BODY_SECONDS, JSON_BODY, READY, Intake
from ltrain_collector.ingest.refusals import Malformed, Refusal, TooSlow, Unsupported
from ltrain_collector.ingest.signals import SIGNALS, Signal

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

PATHS = {signal.path: signal for signal in SIGNALS}

RPC_CODES = {403: 7, 404: 5, 405: 12}
"""gRPC's numbers of HTTP's, for the Status that OTLP wants in every answer that is an error."""


class Receiver:
    """The ASGI app of the OTLP port."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            guard(headers)
            method, path = scope["method"], scope["path"].rstrip("/")
            if method == "POST" and path in PATHS:
                await self._export(PATHS[path], headers, kind, receive, send)
            elif method in ("GET", "HEAD") and path in ("/health", ""):
                await reply(send, 200, json.dumps(self._intake.health()).encode() + b"\n", JSON)
            else:
                raise _not_here(method, scope["path"])
        except Refused as error:
            as_json = kind != PROTOBUF
            body = serialised(status_of(RPC_CODES.get(error.status, 2), str(error)), as_json)
            await reply(send, error.status, body, JSON if as_json else PROTOBUF)
        except ClientGone:
            return

    async def _export(
        self, signal: Signal, headers: dict[str, str], kind: str, receive: Receive, send: Send
    ) -> None:
        as_json = kind != PROTOBUF  # what is neither is refused in JSON, which people read
        try:
            with Arrival(self._intake.budget) as arrival:
                _check_kind(kind)
                await self._read(arrival, headers, JSON_BODY if as_json else BODY, receive)
                encoding = headers.get("content-encoding", "").strip().lower()
                answer = await self._intake.take(signal, arrival, encoding, as_json)
        except Refusal as error:
            self._intake.refuse(signal, error)
            more = {"retry_after": str(READY)} if error.again else {}
            if isinstance(error, TooSlow):
                more["connection"] = "close"
            body = serialised(refused(error), as_json)
            await reply(send, error.status, body, JSON if as_json else PROTOBUF, **more)
            return
        await reply(send, 200, serialised(answer, as_json), kind)

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
    return Refused(404, f"{method} {path} is not served here; {served} and GET /health are.")
