"""OTLP over gRPC: the same requests and responses as over HTTP.

Messages are received as bytes: generated code would decode them on the event loop, and gRPC would
decompress them without a limit on memory.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc import aio

from ltrain_collector.access import Grant, Keys
from ltrain_collector.errors import HttpError, Malformed, OtlpError, Overloaded, PortTaken, TooSlow
from ltrain_collector.http import (
    DENIED_STATUSES,
    MAX_HEAD_BYTES,
    ORIGIN,
    RefusalCounts,
    RefusalReason,
    RequestBuffer,
    Tls,
)
from ltrain_collector.ingest import BODY_TIMEOUT, MAX_BODY_BYTES, Intake, error_status
from ltrain_collector.signals import SIGNALS, Signal

MAX_CONCURRENT_READS = 16
"""Messages that are received at the same time; gRPC buffers them until they are complete."""

OPTIONS = (
    ("grpc.max_receive_message_length", MAX_BODY_BYTES),
    ("grpc.per_message_decompression", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 128),
    ("grpc.max_metadata_size", MAX_HEAD_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_HEAD_BYTES),
)

MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x78\x01": "deflate",
    b"\x78\x9c": "deflate",
    b"\x78\xda": "deflate",
}
"""Encoding of a message by its first two bytes; no OTLP message starts with them."""

CODES = {code.value[0]: code for code in grpc.StatusCode}

METHODS = {f"/{signal.service}/Export": signal for signal in SIGNALS}


class GrpcReceiver(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The OTLP service of each signal."""

    def __init__(self, intake: Intake, keys: Keys, refusals: RefusalCounts) -> None:
        self._intake = intake
        self._keys = keys
        self._refusals = refusals
        self._reading = asyncio.Semaphore(MAX_CONCURRENT_READS)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        signal = METHODS.get(details.method)
        # a stream of one message is the same on the wire, and we choose when to read it
        return grpc.stream_unary_rpc_method_handler(self._export(signal)) if signal else None

    def _export(self, signal: Signal) -> Callable[[Any, aio.ServicerContext], Awaitable[bytes]]:
        async def export(_: Any, context: aio.ServicerContext) -> bytes:
            grant = None
            try:
                self._refuse_page(context)
                grant = self._grant(context)
                # a disconnected client must not release the memory of rows that still wait
                return await asyncio.shield(self._answer(signal, grant, context))
            except HttpError as error:
                await context.abort(CODES[error.code], str(error))
                raise
            except OtlpError as error:
                self._intake.count_error(signal, error, grant)
                details = error_status(error).SerializeToString()
                trailing = (("grpc-status-details-bin", details),)
                await context.abort(CODES[error.code], str(error), trailing)
                raise

        return export

    def _refuse_page(self, context: aio.ServicerContext) -> None:
        """Refuse requests with a browser's headers, although no browser can send gRPC."""
        names = {name for name, _ in context.invocation_metadata() or ()}
        if "origin" in names or "sec-fetch-site" in names:
            self._refusals.add(RefusalReason.ORIGIN)
            raise HttpError(403, ORIGIN.sentence)

    def _grant(self, context: aio.ServicerContext) -> Grant | None:
        metadata = context.invocation_metadata() or ()
        try:
            return self._keys.authorize_ingest({name: value for name, value in metadata})
        except HttpError as error:
            if error.status in DENIED_STATUSES:
                self._refusals.add(RefusalReason.DENIED)
            raise

    async def _answer(
        self, signal: Signal, grant: Grant | None, context: aio.ServicerContext
    ) -> bytes:
        with self._intake.buffer(grant) as buffer:
            self._intake.max_bytes(grant, 0)
            await self._read(buffer, context)
            encoding = MAGIC.get(buffer.first_bytes(2), "")
            answer = await self._intake.ingest(signal, buffer, encoding, grant=grant)
        return bytes(answer.SerializeToString())

    async def _read(self, buffer: RequestBuffer, context: aio.ServicerContext) -> None:
        self._intake.budget.admit()
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                await self._reading.acquire()
        except TimeoutError as error:
            raise Overloaded(
                f"{MAX_CONCURRENT_READS} other messages are being received; try again."
            ) from error
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                message = await context.read()
        except TimeoutError as error:
            raise TooSlow(
                f"No complete message arrived within {BODY_TIMEOUT:.0f} seconds. Send less at a "
                "time."
            ) from error
        finally:
            self._reading.release()
        if not isinstance(message, bytes):
            raise Malformed("The call has no message.")
        buffer.add(message)


def make_server(
    receiver: GrpcReceiver, host: str, port: int, tls: Tls | None, connections: int
) -> tuple[aio.Server, int]:
    """Return a server that is not started yet, and its port.

    Args:
        connections: limit of open connections; gRPC closes further ones.
    """
    limit = ("grpc.max_allowed_incoming_connections", connections)
    server = aio.server(options=(*OPTIONS, limit))
    server.add_generic_rpc_handlers((receiver,))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is None:
            return server, server.add_insecure_port(address)
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
        return server, server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except RuntimeError as error:
        raise PortTaken(port, "--grpc-port") from error
