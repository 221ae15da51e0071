"""Posts OTLP requests to a destination over a persistent connection and returns each result."""

import gzip
import http.client
import logging
import os
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ltrain_instrument import settings
from ltrain_instrument.machine import is_loopback
from ltrain_instrument.quantity import quantity

CONNECT_TIMEOUT = 2.0
"""Maximum seconds to connect; a running collector accepts immediately."""
TIMEOUT = 30.0
"""Maximum seconds of a spool's request."""
FALLBACK_SECONDS = 60.0
"""Seconds for which the environment's key is used after another key was refused."""

_logger = logging.getLogger("ltrain.spool")


@dataclass(frozen=True, slots=True)
class Authorization:
    """An Authorization header that replaces the one of the environment."""

    header: Callable[[], str | None]
    """Returns the header of the next request; None: the environment's own."""
    fallback: bool = False
    """Whether a refused request is sent again with the environment's key, if there is one."""


class SendStatus(StrEnum):
    """The status of a request that was sent."""

    ACCEPTED = "accepted"
    """The collector has it."""
    RETRY = "retry"
    """The collector is unreachable or busy: the same request may succeed later."""
    REFUSED = "refused"
    """The collector will never accept it."""


@dataclass(frozen=True, slots=True)
class SendResult:
    status: SendStatus
    reason: str = ""
    """Why it was not accepted completely; '' otherwise."""
    remedy: str = ""
    """The change that the user must make before a request can succeed; '' if waiting is enough."""
    retry_after: float = 0.0
    """Seconds after which the collector wants the request again; 0 if it names none."""
    rejected: int = 0
    """Records that an accepted request lost: OTLP's partial success."""


_PROTOBUF, _HTML = "application/x-protobuf", "text/html"

MAX_PAUSE = 1.0
"""Maximum seconds between two attempts while a collector is unreachable."""

_REFUSED_STATUSES = (400, 413, 422)
"""Statuses about the request itself; all others are about the endpoint, which a user can fix."""
_KEY_HEADERS = ("authorization", "x-clickhouse-key")
"""Headers that hold a key, in lower case."""


def traces_url(endpoint: str | None = None) -> str:
    """Return the URL to which spans are posted; `endpoint` is a base URL."""
    if endpoint is None:
        exact = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        if exact:
            return exact
        endpoint = settings.OTLP_ENDPOINT.read()
    return f"{endpoint.rstrip('/')}/v1/traces"


def _displayed_url(url: str) -> str:
    """Return a URL for messages: with a scheme, and without name and password."""
    scheme, mark, rest = url.rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme or 'http'}{mark or '://'}{host.rpartition('@')[2]}{slash}{path}"


def _is_compressed(host: str) -> bool:
    """Return whether requests to `host` are compressed: by default if it is another machine."""
    compression = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION") or os.environ.get(
        "OTEL_EXPORTER_OTLP_COMPRESSION"
    )
    return compression != "none" if compression else not is_loopback(host)


def _environment_headers() -> dict[str, str]:
    return parse_headers(
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS")
        or os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    )


def _environment_certificate() -> str | None:
    return os.environ.get("OTEL_EXPORTER_OTLP_CERTIFICATE")


def parse_headers(text: str) -> dict[str, str]:
    """Return the headers of a text in OpenTelemetry's form, `name=value,name=value`."""
    pairs = (item.split("=", 1) for item in text.split(",") if "=" in item)
    return {name.strip(): unquote(value.strip()) for name, value in pairs}


class Client(Protocol):
    """Sends the requests of a spool; for one thread at a time."""

    url: str
    """The server, for messages."""

    def post(self, request: bytes) -> SendResult:
        """Send one serialized request; never raises network errors."""

    def close(self) -> None:
        """Close the connection; the next post opens a new one."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A server that gets requests; the default one is the collector of an agent's process."""

    locate: Callable[[str | None], str] = traces_url
    """Returns the exact URL before each connection, from the base URL of a spool."""
    headers: Callable[[], dict[str, str]] = _environment_headers
    certificate: Callable[[], str | None] = _environment_certificate
    """Returns the file with the certificate of the server's authority; None: the system's."""
    response: type[Any] = ExportTraceServiceResponse
    """The message of a successful answer."""
    records: str = "spans"
    """The plural of one record."""
    rejected_field: str = "rejected_spans"
    """The field of a partial success that counts records."""
    key_remedy: str = "Set OTEL_EXPORTER_OTLP_HEADERS to its key, e.g. authorization=Bearer%20KEY."
    certificate_remedy: str = (
        "Set OTEL_EXPORTER_OTLP_CERTIFICATE to the certificate file of its authority."
    )
    endpoint_remedy: str = (
        "Set OTEL_EXPORTER_OTLP_ENDPOINT to a collector's URL, e.g. http://127.0.0.1:4318."
    )
    max_pause: float = MAX_PAUSE
    """Maximum seconds between two attempts while the server is unreachable."""
    observe: Callable[[SendResult], None] | None = None
    """Gets each result, in the thread that sends; None: what a user must fix is logged once."""
    client: "Callable[[Destination], Client] | None" = None
    """Returns a client of another protocol; None: OTLP over HTTP."""

    def open(self, endpoint: str | None, authorization: Authorization | None) -> Client:
        """Return a client of the server.

        Args:
            endpoint: the base URL of a spool.
        """
        if self.client is not None:
            return self.client(self)
        locate = partial(self.locate, endpoint)
        return Sender(locate, timeout=TIMEOUT, authorization=authorization, destination=self)

    def partial_success(self, body: bytes) -> SendResult:
        """Return the result of an accepted request, with the number of records that it lost."""
        try:
            partial_success = self.response.FromString(body).partial_success
        except ValueError:  # protobuf's DecodeError: a proxy's own page, not an OTLP response
            return SendResult(SendStatus.ACCEPTED)
        if not (rejected := getattr(partial_success, self.rejected_field)):
            return SendResult(SendStatus.ACCEPTED)
        counted = quantity(rejected, self.records.removesuffix("s"))
        reason = f"{counted} rejected: {partial_success.error_message}"
        return SendResult(SendStatus.ACCEPTED, reason, rejected=rejected)


COLLECTOR = Destination()
"""The collector of an agent's process, with the headers and the certificate of OpenTelemetry."""


def _error_message(content_type: str, body: bytes) -> str:
    """Return the message of an error: that of a google.rpc.Status, as in OTLP, or the text."""
    if content_type == _HTML:
        return "a web page"
    if content_type == _PROTOBUF:
        from google.rpc.status_pb2 import Status  # imported only when a collector fails

        with suppress(ValueError):
            return str(Status.FromString(body).message)[:200]
    return body[:200].decode(errors="replace").strip()


def seconds_of_retry_after(text: str | None) -> float:
    """Return the seconds of a `Retry-After` header; 0 if it is absent or a date."""
    return float(text) if text and text.isdecimal() else 0.0


class Sender:
    """A client of one destination; for one thread at a time."""

    def __init__(
        self,
        locate: Callable[[], str],
        *,
        timeout: float,
        authorization: Authorization | None = None,
        destination: Destination = COLLECTOR,
    ) -> None:
        """Prepare a client; `locate` returns the URL before each connection."""
        self._locate = locate
        self._timeout = timeout
        self._destination = destination
        self._set_url()
        self._headers = {"Content-Type": _PROTOBUF, **destination.headers()}
        self._authorization = authorization
        self._falls_back = bool(
            authorization
            and authorization.fallback
            and any(name.lower() in _KEY_HEADERS for name in self._headers)
        )
        self._fallback_until = 0.0
        self._warn = WarnOnce()
        self._connection: http.client.HTTPConnection | None = None
        self._pid = os.getpid()

    def _set_url(self) -> None:
        self.url = _displayed_url(self._locate())
        self._split_url = urlsplit(self.url)
        self.compressed = _is_compressed(self._split_url.hostname or "")
        """Whether requests are compressed."""

    def post(self, request: bytes) -> SendResult:
        """Send one serialised ExportTraceServiceRequest; never raises network errors.

        A request whose key was refused is never sent without a key, because the collector would
        store its spans without an owner.
        """
        authorize = time.monotonic() >= self._fallback_until
        result = self._post(request, authorize=authorize)
        if authorize and self._falls_back and result.remedy == self._destination.key_remedy:
            refusal, result = result.reason, self._post(request, authorize=False)
            if result.status is SendStatus.ACCEPTED:
                self._fallback_until = time.monotonic() + FALLBACK_SECONDS
                with_key = "the key of OTEL_EXPORTER_OTLP_HEADERS and belong to it"
                self._warn(f"{refusal}. Spans are sent with {with_key}.", "key")
        return result

    def _post(self, request: bytes, *, authorize: bool) -> SendResult:
        if self._pid != os.getpid():
            self._connection = None  # a forked child must not write to its parent's connection
            self._pid = os.getpid()
        reused = self._connection is not None
        if not reused:
            self._set_url()
        # Level 1 is three times faster than the default and a tenth larger, on chat histories
        body = gzip.compress(request, 1, mtime=0) if self.compressed else request
        try:
            return self._send_request(body, authorize=authorize)
        except TimeoutError as error:
            self.close()
            return SendResult(SendStatus.RETRY, f"{self.url}: {error}")
        except ssl.SSLCertVerificationError as error:
            self.close()
            reason = f"{self.url}: {error.verify_message}"
            return SendResult(SendStatus.RETRY, reason, self._destination.certificate_remedy)
        except ValueError as error:  # an invalid port or header; the header may be a secret
            self.close()
            reason = f"{self.url} or its headers cannot be used ({type(error).__name__})"
            return SendResult(SendStatus.RETRY, reason, self._destination.endpoint_remedy)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not reused:
                description = getattr(error, "strerror", None) or repr(error)
                return SendResult(SendStatus.RETRY, f"{self.url}: {description}")
        # The collector had closed the idle connection
        return self._post(request, authorize=authorize)

    def _send_request(self, body: bytes, *, authorize: bool) -> SendResult:
        connection = self._connection = self._connection or self._connect()
        target = self._split_url.path or "/"
        if self._split_url.query:
            target += f"?{self._split_url.query}"
        connection.request("POST", target, body, self._request_headers(authorize=authorize))
        with connection.getresponse() as response:
            content_type, body = response.headers.get_content_type(), response.read()
            wait = seconds_of_retry_after(response.headers.get("Retry-After"))
            return self._result(response.status, content_type, body, wait)

    def _result(
        self, status: int, content_type: str, body: bytes, retry_after: float
    ) -> SendResult:
        """Return the result of a response; an HTML page never comes from a collector."""
        if status < 300 and content_type != _HTML:
            return self._destination.partial_success(body)
        message = _error_message(content_type, body).rstrip(".")
        reason = f"{self.url} answered {status} {message}".strip()
        if status in _REFUSED_STATUSES:
            return SendResult(SendStatus.REFUSED, reason)
        if status in (401, 403, 407):
            return SendResult(SendStatus.RETRY, reason, self._destination.key_remedy)
        is_temporary = status >= 500 or status in (408, 425, 429)
        remedy = "" if is_temporary else self._destination.endpoint_remedy
        return SendResult(SendStatus.RETRY, reason, remedy, retry_after)

    def _request_headers(self, *, authorize: bool) -> dict[str, str]:
        header = self._authorization.header() if self._authorization and authorize else None
        encoding = {"Content-Encoding": "gzip"} if self.compressed else {}
        headers = self._headers | encoding
        if header is None:
            return headers
        headers = {key: value for key, value in headers.items() if key.lower() != "authorization"}
        return {**headers, "Authorization": header}

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._split_url.hostname or "127.0.0.1", self._split_url.port
        connect_timeout = min(CONNECT_TIMEOUT, self._timeout)
        connection: http.client.HTTPConnection
        if self._split_url.scheme == "https":
            tls = ssl.create_default_context(cafile=self._destination.certificate())
            connection = http.client.HTTPSConnection(
                host, port, timeout=connect_timeout, context=tls
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=connect_timeout)
        connection.connect()
        connection.sock.settimeout(self._timeout)
        return connection

    def close(self) -> None:
        """Close the connection; the next post opens a new one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class WarnOnce:
    """Logs the first warning of each kind."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def __call__(self, text: str, kind: str) -> None:
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        _logger.warning("ltrain: %s", text)
