"""Posts OTLP requests to a collector over one kept connection, and says what became of each."""

import gzip
import http.client
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ltrain_instrument import settings
from ltrain_instrument.loopback import is_loopback

Authorization = Callable[[], str | None]
"""Returns the header of the next request; None: the environment's own."""

CONNECT_TIMEOUT = 2.0
"""Seconds to wait for a connection; a collector that is up accepts at once."""


class Fate(StrEnum):
    """What became of a request."""

    TAKEN = "taken"
    """The collector has it."""
    LATER = "later"
    """The collector is away or busy: the same request may pass later."""
    REFUSED = "refused"
    """The collector will never take it."""


@dataclass(frozen=True, slots=True)
class Receipt:
    fate: Fate
    reason: str = ""
    """Why, in words, where it was not taken whole."""
    remedy: str = ""
    """What the user has to mend before a request can pass; '' where waiting is enough."""


_PROTOBUF, _PAGE = "application/x-protobuf", "text/html"

_REFUSALS = (400, 413, 422)
"""Statuses that are about the request; the others are about the endpoint, which may be mended."""
_KEY = "Set OTEL_EXPORTER_OTLP_HEADERS to what it asks for, as authorization=Bearer%20KEY."
_CERTIFICATE = "Set OTEL_EXPORTER_OTLP_CERTIFICATE to the file of its authority."
_ENDPOINT = "Set OTEL_EXPORTER_OTLP_ENDPOINT to a collector's address, as http://127.0.0.1:4318."


def traces_url(endpoint: str | None = None) -> str:
    """Give the URL that spans are posted to; `endpoint` is a base URL."""
    if endpoint is None:
        exact = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        if exact:
            return exact
        endpoint = settings.OTLP_ENDPOINT.read()
    return f"{endpoint.rstrip('/')}/v1/traces"


def _plain(url: str) -> str:
    """Add the scheme that host:port lacks, and take out a name and password: the URL is shown."""
    scheme, mark, rest = url.rpartition("://")
    where, slash, path = rest.partition("/")
    return f"{scheme or 'http'}{mark or '://'}{where.rpartition('@')[2]}{slash}{path}"


def _packed(host: str) -> bool:
    """Say whether requests to `host` are compressed: unless told, those that leave this machine."""
    told = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION") or os.environ.get(
        "OTEL_EXPORTER_OTLP_COMPRESSION"
    )
    return told != "none" if told else not is_loopback(host)


def _headers() -> dict[str, str]:
    text = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or os.environ.get(
        "OTEL_EXPORTER_OTLP_HEADERS", ""
    )
    pairs = (item.split("=", 1) for item in text.split(",") if "=" in item)
    return {name.strip(): unquote(value.strip()) for name, value in pairs}


def _said(kind: str, answer: bytes) -> str:
    """Give what an answer that is an error says: a google.rpc.Status, as OTLP has it, or text."""
    if kind == _PAGE:
        return "a web page"
    if kind == _PROTOBUF:
        from google.rpc.status_pb2 import Status  # a collector that is well never needs it

        with suppress(ValueError):
            return str(Status.FromString(answer).message)[:200]
    return answer[:200].decode(errors="replace").strip()


def _rejected(body: bytes) -> str:
    """Say what a successful answer rejected all the same (OTLP's partial success)."""
    if not body:
        return ""
    try:
        partial = ExportTraceServiceResponse.FromString(body).partial_success
    except ValueError:  # protobuf's DecodeError: a proxy's own page, not an OTLP answer
        return ""
    if not partial.rejected_spans:
        return ""
    return f"{partial.rejected_spans} spans rejected: {partial.error_message}"


def _receipt(url: str, status: int, kind: str, answer: bytes) -> Receipt:
    """Judge an answer of content type `kind`; a page for people is from something else's server."""
    if status < 300 and kind != _PAGE:
        return Receipt(Fate.TAKEN, _rejected(answer))
    reason = f"{url} answered {status} {_said(kind, answer).rstrip('.')}".strip()
    if status in _REFUSALS:
        return Receipt(Fate.REFUSED, reason)
    if status in (401, 403, 407):
        return Receipt(Fate.LATER, reason, _KEY)
    passing = status >= 500 or status in (408, 425, 429)
    return Receipt(Fate.LATER, reason, "" if passing else _ENDPOINT)


class Delivery:
    """A client of one collector; one thread at a time."""

    def __init__(
        self, url: str, *, timeout: float, authorization: Authorization | None = None
    ) -> None:
        """Make a client of `url`; `authorization` takes the place of the environment's own."""
        self.url = _plain(url)
        self._timeout = timeout
        self._parts = urlsplit(self.url)
        self.packed = _packed(self._parts.hostname or "")
        """Whether requests are compressed on their way."""
        self._headers = {"Content-Type": _PROTOBUF, **_headers()}
        self._authorization = authorization
        self._signs = True
        """Whether to send `authorization`: where it is not taken, the environment's is tried."""
        if self.packed:
            self._headers["Content-Encoding"] = "gzip"
        self._connection: http.client.HTTPConnection | None = None
        self._pid = os.getpid()

    def post(self, request: bytes) -> Receipt:
        """Send one serialised ExportTraceServiceRequest; never raises for the network."""
        # Level 1: three times faster than the default, a tenth larger, on chat histories
        body = gzip.compress(request, 1, mtime=0) if self.packed else request
        if self._pid != os.getpid():
            self._connection = None  # a forked child must not write into its parent's stream
            self._pid = os.getpid()
        reused = self._connection is not None
        try:
            return self._exchange(body)
        except TimeoutError as error:
            self.close()
            return Receipt(Fate.LATER, f"{self.url}: {error}")
        except ssl.SSLCertVerificationError as error:
            self.close()
            return Receipt(Fate.LATER, f"{self.url}: {error.verify_message}", _CERTIFICATE)
        except ValueError as error:  # a port that is no number; a header, which may be a secret
            self.close()
            reason = f"{self.url} or its headers cannot be used ({type(error).__name__})"
            return Receipt(Fate.LATER, reason, _ENDPOINT)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not reused:
                why = getattr(error, "strerror", None) or repr(error)
                return Receipt(Fate.LATER, f"{self.url}: {why}")
        return self.post(request)  # a kept connection that the collector had closed meanwhile

    def _exchange(self, body: bytes) -> Receipt:
        connection = self._connection = self._connection or self._connect()
        target = self._parts.path or "/"
        if self._parts.query:
            target += f"?{self._parts.query}"
        connection.request("POST", target, body, self._authorized())
        with connection.getresponse() as response:
            kind = response.headers.get_content_type()
            if response.status in (401, 403):
                self._signs = not self._signs
            return _receipt(self.url, response.status, kind, response.read())

    def _authorized(self) -> dict[str, str]:
        text = self._authorization() if self._authorization and self._signs else None
        if text is None:
            return self._headers
        others = {key: one for key, one in self._headers.items() if key.lower() != "authorization"}
        return {**others, "Authorization": text}

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "127.0.0.1", self._parts.port
        wait = min(CONNECT_TIMEOUT, self._timeout)
        connection: http.client.HTTPConnection
        if self._parts.scheme == "https":
            authority = os.environ.get("OTEL_EXPORTER_OTLP_CERTIFICATE")
            trust = ssl.create_default_context(cafile=authority)
            connection = http.client.HTTPSConnection(host, port, timeout=wait, context=trust)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=wait)
        connection.connect()
        connection.sock.settimeout(self._timeout)
        return connection

    def close(self) -> None:
        """Drop the connection; the next post makes a new one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
