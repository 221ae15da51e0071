"""Decides which calls of this process are recorded, and starts their recordings."""

import logging
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit
from weakref import WeakSet

from opentelemetry import trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import SpanKind

from ltrain_instrument import attributes, settings
from ltrain_instrument.frameworks import innermost_span
from ltrain_instrument.tokens.recording import Recording, is_recording_active
from ltrain_instrument.tokens.request import Operation, Request, read_request
from ltrain_instrument.tokens.span import CallSpan

ROUTES: dict[str, Operation] = {"/chat/completions": "chat", "/completions": "text_completion"}
"""Path suffixes of endpoints that return token ids; `/v1/responses` of known servers does not."""

_PORTS = {"http": 80, "https": 443}

_logger = logging.getLogger("ltrain.tokens")


class PolicyUrls:
    """Base URLs: scheme, host, port and path prefix."""

    def __init__(self, bases: Sequence[str]) -> None:
        self._bases = [(_origin(base), urlsplit(base).path.rstrip("/")) for base in bases]

    def operation(self, method: str, url: str) -> Operation | None:
        """Return the operation of a request to a policy; None for all other requests."""
        if method.upper() != "POST":
            return None
        path = urlsplit(url).path
        operation = next((ROUTES[end] for end in ROUTES if path.endswith(end)), None)
        if operation is None:
            return None
        origin = _origin(url)
        is_policy = any(
            origin == base_origin and path.startswith(f"{base}/")
            for base_origin, base in self._bases
        )
        return operation if is_policy else None


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


class CallRecorder:
    """The base URLs of the policy, and what is known about its servers."""

    def __init__(self, urls: PolicyUrls, version: int | None) -> None:
        self._urls, self._version = urls, version
        self._tracer = trace.get_tracer(attributes.SCOPE_CAPTURE)
        self._unsupported: set[str] = set()
        self._recordings: WeakSet[Recording] = WeakSet()

    @classmethod
    def from_settings(cls) -> "CallRecorder | None":
        """Return a recorder for the URLs of the environment; None if there are none."""
        bases = settings.POLICY_URLS.read()
        return cls(PolicyUrls(bases), settings.POLICY_VERSION.read()) if bases else None

    def start_recording(
        self, method: str, url: str, body: Callable[[], bytes | None]
    ) -> Recording | None:
        """Start to record a request; return None if it must not be recorded.

        That is a request to another server, one with an unreadable body, or one without active
        tracing.
        """
        try:
            operation = self._urls.operation(method, url)
            if operation is None or url in self._unsupported:
                return None
            if is_recording_active() or not is_instrumentation_enabled():
                return None
            raw = body()
            request = read_request(operation, raw) if raw else None
            return None if request is None else self._recording(request)
        except Exception as error:  # a defect of ltrain, or an unforeseen request
            _logger.warning("ltrain: a call of %s is not recorded: %r", url, error)
            return None

    def _recording(self, request: Request) -> Recording | None:
        parent = trace.set_span_in_context(innermost_span())
        span = CallSpan(self._tracer, parent, SpanKind.CLIENT, request)
        if not span.span.is_recording():
            return None
        span.set_policy(request.model, self._version)
        recording = Recording(request, span)
        self._recordings.add(recording)
        return recording

    def end_open_recordings(self) -> None:
        """End the recordings of calls without a complete response, because the process exits."""
        for recording in list(self._recordings):
            recording.truncate()

    def mark_unsupported(self, url: str, status: int) -> None:
        """Stop recording a URL whose server refuses requests for token ids, with one warning."""
        self._unsupported.add(url)
        _logger.warning(
            "ltrain: %s is in LTRAIN_POLICY_URLS, but answers %s to a request for token ids. "
            "Its calls are no longer recorded.",
            url,
            status,
        )
