"""OTLP over gRPC: the same requests and answers as over HTTP.

Messages pass as bytes: what is generated would decode them on the event loop, and gRPC itself would
unpack them without asking how much room there is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc import aio

from ltrain_collector.asgi import Refused
from ltrain_collector.errors import PortTaken
from ltrain_collector.grants import Grant
from ltrain_collector.ingest.answers import refused
from ltrain_collector.ingest.budget import Arrival
from ltrain_collector.ingest.intake import BODY, BODY_SECONDS, Intake
from ltrain_collector.ingest.refusals import Malformed, Overloaded, Refusal, TooSlow
from ltrain_collector.ingest.signals import SIGNALS, Signal
from ltrain_collector.keys import Keys
from ltrain_collector.listen.browsers import DENIED, ORIGIN
from ltrain_collector.listen.connection import HEAD
from ltrain_collector.listen.refusals import Reason, Refusals
from ltrain_collector.tls import Tls

READING = 16
"""Messages that may be coming at one time; gRPC keeps them itself until they are whole."""

OPTIONS = (
    ("grpc.max_receive_message_length", BODY),
    ("grpc.per_message_decompression", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 128),
    ("grpc.max_metadata_size", HEAD),
    ("grpc.absolute_max_metadata_size", HEAD),
)

MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x78\x01": "deflate",
    b"\x78\x9c": "deflate",
    b"\x78\xda": "deflate",
}
"""How a packed message begins; no OTLP message does."""

RPC_CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    503: grpc.StatusCode.UNAVAILABLE,
}

CODES = {code.value[0]: code for code in grpc.StatusCode}

METHODS = {f"/{signal.service}/Export": signal for signal in SIGNALS}


class GrpcReceiver(grpc.GenericRpcHandler):  # type: ignore[misc]
    """OTLP's three services."""

    def __init__(self, intake: Intake, keys: Keys, refusals: Refusals) -> None:
        self._intake = intake
        self._keys = keys
        self._refusals = refusals
        self._reading = asyncio.Semaphore(READING)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        signal = METHODS.get(details.method)
        # a stream of one message is the same on the wire, and lets us read it when we choose
        return grpc.stream_unary_rpc_method_handler(self._export(signal)) if signal else None

    def _export(self, signal: Signal) -> Callable[[Any, aio.ServicerContext], Awaitable[bytes]]:
        async def export(_: Any, context: aio.ServicerContext) -> bytes:
            try:
                self._refuse_page(context)
                grant = self._grant(context)
                # a client that goes away must not take what waits out of the count
                return await asyncio.shield(self._answer(signal, grant, context))
            except Refused as error:
                await context.abort(RPC_CODES[error.status], str(error))
                raise
            except Refusal as error:
                self._intake.refuse(signal, error)
                details = refused(error).SerializeToString()
                trailing = (("grpc-status-details-bin", details),)
                await context.abort(CODES[error.code], str(error), trailing)
                raise

        return export

    def _refuse_page(self, context: aio.ServicerContext) -> None:
        """Refuse what only a browser sends, although none speaks gRPC."""
        names = {name for name, _ in context.invocation_metadata() or ()}
        if "origin" in names or "sec-fetch-site" in names:
            self._refusals.add(Reason.ORIGIN)
            raise Refused(403, ORIGIN.sentence)

    def _grant(self, context: aio.ServicerContext) -> Grant | None:
        metadata = context.invocation_metadata() or ()
        try:
            return self._keys.ingesting({name: value for name, value in metadata})
        except Refused as error:
            if error.status in DENIED:
                self._refusals.add(Reason.DENIED)
            raise

    async def _answer(
        self, signal: Signal, grant: Grant | None, context: aio.ServicerContext
    ) -> bytes:
        with Arrival(self._intake.budget) as arrival:
            await self._read(arrival, context)
            encoding = MAGIC.get(arrival.begins(2), "")
            answer = await self._intake.take(signal, arrival, encoding, grant=grant)
        return bytes(answer.SerializeToString())

    async def _read(self, arrival: Arrival, context: aio.ServicerContext) -> None:
        self._intake.budget.admit()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                await self._reading.acquire()
        except TimeoutError as error:
            raise Overloaded(f"{READING} messages are being read; try again.") from error
        try:
            async with asyncio.timeout(BODY_SECONDS):
                message = await context.read()
        except TimeoutError as error:
            raise TooSlow(f"No whole message came in {BODY_SECONDS:.0f} seconds.") from error
        finally:
            self._reading.release()
        if not isinstance(message, bytes):
            raise Malformed("The call has no message.")
        arrival.add(message)


def server_of(
    receiver: GrpcReceiver, host: str, port: int, tls: Tls | None, connections: int
) -> tuple[aio.Server, int]:
    """Return a server that is to be started, and its port.

    Args:
        connections: that it may hold at a time; gRPC closes those beyond it.

    Raises:
        PortTaken: when another process listens there.
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
