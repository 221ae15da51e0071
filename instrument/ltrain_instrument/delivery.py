"""Posts OTLP requests to a collector over one kept connection; each post returns a receipt."""

import gzip
import http.client
import os
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ltrain_instrument import settings
from ltrain_instrument.loopback import is_loopback
from ltrain_instrument.once import Once

CONNECT_TIMEOUT = 2.0
"""Seconds to wait for a connection; a collector that is up accepts at once."""
OWN_KEY = 60.0
"""Seconds for which the environment's key is sent where it was taken in place of another."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """A header that takes the place of the environment's own."""

    header: Callable[[], str | None]
    """Returns that of the next request; None: the environment's own."""
    fallback: bool = False
    """Whether a request that is refused with it is sent with the environment's key, if any."""


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
    """What the user has to fix before a request can pass; '' where waiting is enough."""


_PROTOBUF, _PAGE = "application/x-protobuf", "text/html"

_REFUSALS = (400, 413, 422)
"""Statuses that are about the request; the others are about the endpoint, which may be fixed."""
_KEYS = ("authorization", "x-clickhouse-key")
"""Headers that hold a key, in lower case."""
_KEY = "Set OTEL_EXPORTER_OTLP_HEADERS to what it asks for, as authorization=Bearer%20KEY."
_CERTIFICATE = "Set OTEL_EXPORTER_OTLP_CERTIFICATE to the file of its authority."
_ENDPOINT = "Set OTEL_EXPORTER_OTLP_ENDPOINT to a collector's address, as http://127.0.0.1:4318."


def traces_url(endpoint: str | None = None) -> str:
    """Return the URL that spans are posted to; `endpoint` is a base URL."""
    if endpoint is None:
        exact = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        if exact:
            return exact
        endpoint = settings.OTLP_ENDPOINT.read()
    return f"{endpoint.rstrip('/')}/v1/traces"


def _plain(url: str) -> str:
    """Return a URL with the scheme that host:port lacks, without name and password: it is shown."""
    scheme, mark, rest = url.rpartition("://")
    where, slash, path = rest.partition("/")
    return f"{scheme or 'http'}{mark or '://'}{where.rpartition('@')[2]}{slash}{path}"


def _packed(host: str) -> bool:
    """Return whether requests to `host` are compressed: by default if they leave the machine."""
    compression = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION") or os.environ.get(
        "OTEL_EXPORTER_OTLP_COMPRESSION"
    )
    return compression != "none" if compression else not is_loopback(host)


def _headers() -> dict[str, str]:
    text = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or os.environ.get(
        "OTEL_EXPORTER_OTLP_HEADERS", ""
    )
    pairs = (item.split("=", 1) for item in text.split(",") if "=" in item)
    return {name.strip(): unquote(value.strip()) for name, value in pairs}


def _message(kind: str, answer: bytes) -> str:
    """Return the message of an error: that of a google.rpc.Status, as OTLP has it, or text."""
    if kind == _PAGE:
        return "a web page"
    if kind == _PROTOBUF:
        from google.rpc.status_pb2 import Status  # a collector that is well never needs it

        with suppress(ValueError):
            return str(Status.FromString(answer).message)[:200]
    return answer[:200].decode(errors="replace").strip()


def _rejected(body: bytes) -> str:
    """Return what a successful answer rejects all the same (OTLP's partial success)."""
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
    """Return the receipt of an answer of content type `kind`; no collector answers with a page."""
    if status < 300 and kind != _PAGE:
        return Receipt(Fate.TAKEN, _rejected(answer))
    reason = f"{url} answered {status} {_message(kind, answer).rstrip('.')}".strip()
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
        self.url = _plain(url)
        self._timeout = timeout
        self._parts = urlsplit(self.url)
        self.packed = _packed(self._parts.hostname or "")
        """Whether requests are compressed on their way."""
        self._headers = {"Content-Type": _PROTOBUF, **_headers()}
        self._authorization = authorization
        self._falls_back = bool(
            authorization
            and authorization.fallback
            and any(name.lower() in _KEYS for name in self._headers)
        )
        self._own_key_until = 0.0
        self._warn = Once()
        if self.packed:
            self._headers["Content-Encoding"] = "gzip"
        self._connection: http.client.HTTPConnection | None = None
        self._pid = os.getpid()

    def post(self, request: bytes) -> Receipt:
        """Send one serialised ExportTraceServiceRequest; never raises for the network.

        A request is never sent without a key because its key was refused: the collector would take
        its spans as nobody's.
        """
        signed = time.monotonic() >= self._own_key_until
        receipt = self._post(request, signed=signed)
        if signed and self._falls_back and receipt.remedy == _KEY:
            refusal, receipt = receipt.reason, self._post(request, signed=False)
            if receipt.fate is Fate.TAKEN:
                self._own_key_until = time.monotonic() + OWN_KEY
                own = "the key of OTEL_EXPORTER_OTLP_HEADERS, as that key's"
                self._warn(f"{refusal}. Spans go out with {own}.", "key")
        return receipt

    def _post(self, request: bytes, *, signed: bool) -> Receipt:
        # Level 1: three times faster than the default, a tenth larger, on chat histories
        body = gzip.compress(request, 1, mtime=0) if self.packed else request
        if self._pid != os.getpid():
            self._connection = None  # a forked child must not write into its parent's stream
            self._pid = os.getpid()
        reused = self._connection is not None
        try:
            return self._exchange(body, signed=signed)
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
        return self._post(request, signed=signed)  # the collector had closed a kept connection

    def _exchange(self, body: bytes, *, signed: bool) -> Receipt:
        connection = self._connection = self._connection or self._connect()
        target = self._parts.path or "/"
        if self._parts.query:
            target += f"?{self._parts.query}"
        connection.request("POST", target, body, self._authorized(signed=signed))
        with connection.getresponse() as response:
            kind = response.headers.get_content_type()
            return _receipt(self.url, response.status, kind, response.read())

    def _authorized(self, *, signed: bool) -> dict[str, str]:
        header = self._authorization.header() if self._authorization and signed else None
        if header is None:
            return self._headers
        others = {key: one for key, one in self._headers.items() if key.lower() != "authorization"}
        return {**others, "Authorization": header}

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
