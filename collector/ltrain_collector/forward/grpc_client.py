"""OTLP over gRPC to a target: the statuses that OTLP says to send again, and how long to wait."""

import os
import re
from pathlib import Path

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from ltrain_collector.forward.target import Target
from ltrain_collector.signals import Signal
from ltrain_instrument.delivery import Destination, SendResult, SendStatus
from ltrain_instrument.machine import is_loopback

TIMEOUT = 30.0
"""Seconds in which a target must answer."""

OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 5_000),  # by default two minutes after a long outage
)

CODE = grpc.StatusCode
RETRIED = {
    *(CODE.CANCELLED, CODE.DEADLINE_EXCEEDED, CODE.ABORTED, CODE.OUT_OF_RANGE),
    *(CODE.UNAVAILABLE, CODE.DATA_LOSS),
}
"""The statuses after which OTLP sends a request again, besides RESOURCE_EXHAUSTED with a
`RetryInfo`."""
OF_KEY = {CODE.UNAUTHENTICATED, CODE.PERMISSION_DENIED}
OF_ENDPOINT = {CODE.UNIMPLEMENTED, CODE.NOT_FOUND}
"""Statuses of another server than one of OTLP."""


class GrpcClient:
    """Sends the requests of one signal; for one thread at a time."""

    def __init__(self, target: Target, signal: Signal, destination: Destination) -> None:
        self.url = target.url
        self._address, self._is_secure = target.address, target.url.startswith("grpcs://")
        self._method = f"/{signal.service}/Export"
        self._destination = destination
        self._metadata = [(name.lower(), text) for name, text in destination.headers().items()]
        is_near = is_loopback(self._address.rpartition(":")[0].strip("[]"))
        self._compression = grpc.Compression.NoCompression if is_near else grpc.Compression.Gzip
        self._channel: grpc.Channel | None = None

    def post(self, request: bytes) -> SendResult:
        """Send one serialized request; never raises network errors."""
        if not all(_is_metadata(*pair) for pair in self._metadata):
            reason = f"{self.url}: its headers cannot be used as metadata"  # they may be secret
            return SendResult(SendStatus.RETRY, reason, self._destination.key_remedy)
        try:
            self._channel = self._channel or self._open()
            export = self._channel.unary_unary(self._method)
            answer = export(
                request,
                timeout=TIMEOUT,
                metadata=self._metadata,
                compression=self._compression,
            )
            return self._destination.partial_success(answer)
        except grpc.RpcError as error:
            return self._failure(error)
        except OSError as error:
            reason = f"{self.url}: {error.filename}: {error.strerror}"
            return SendResult(SendStatus.RETRY, reason, self._destination.certificate_remedy)

    def _open(self) -> grpc.Channel:
        if not self._is_secure:
            return grpc.insecure_channel(self._address, OPTIONS)
        file = os.environ.get("SSL_CERT_FILE")
        authority = Path(file).read_bytes() if file else None
        return grpc.secure_channel(self._address, grpc.ssl_channel_credentials(authority), OPTIONS)

    def _failure(self, error: grpc.RpcError) -> SendResult:
        code, wait = error.code(), _retry_delay(error)
        reason = f"{self.url} answered {code.name} {error.details() or ''}"[:200].strip(" .")
        remedies = dict.fromkeys(OF_KEY, self._destination.key_remedy) | dict.fromkeys(
            OF_ENDPOINT, self._destination.endpoint_remedy
        )
        if code in remedies:
            return SendResult(SendStatus.RETRY, reason, remedies[code])
        if code in RETRIED or (code is CODE.RESOURCE_EXHAUSTED and wait is not None):
            return SendResult(SendStatus.RETRY, reason, retry_after=wait or 0.0)
        return SendResult(SendStatus.REFUSED, reason)

    def close(self) -> None:
        """Close the channel; the next post opens a new one."""
        if self._channel is not None:
            self._channel.close()
        self._channel = None


def _is_metadata(name: str, text: str) -> bool:
    """Return whether gRPC sends a header; it would answer with a status as of the target."""
    is_name = re.fullmatch(r"[a-z0-9_.-]+(?<!-bin)", name) is not None
    return is_name and text.isascii() and text.isprintable()


def _retry_delay(error: grpc.RpcError) -> float | None:
    """Return the seconds of an error's `RetryInfo`; None if it has none."""
    trailing = error.trailing_metadata() or ()
    content = next((text for name, text in trailing if name == "grpc-status-details-bin"), b"")
    retry = RetryInfo()
    try:
        found = any(each.Unpack(retry) for each in Status.FromString(content).details)
    except DecodeError:
        return None
    return retry.retry_delay.ToTimedelta().total_seconds() if found else None
