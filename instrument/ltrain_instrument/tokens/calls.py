"""Which calls of this process are recorded, and where a recording begins."""

import logging
from collections.abc import Callable
from weakref import WeakSet

from opentelemetry import trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import SpanKind

from ltrain_instrument import attributes, settings
from ltrain_instrument.bridge import innermost_span
from ltrain_instrument.tokens.recording import Recording, is_recorded
from ltrain_instrument.tokens.request import Request, read_request
from ltrain_instrument.tokens.span import CallSpan
from ltrain_instrument.tokens.urls import PolicyUrls

_logger = logging.getLogger("ltrain.tokens")


class Calls:
    """The policy's base URLs, and what is known of who answers there."""

    def __init__(self, urls: PolicyUrls, version: int | None) -> None:
        self._urls, self._version = urls, version
        self._tracer = trace.get_tracer(attributes.SCOPE_CAPTURE)
        self._unwilling: set[str] = set()
        self._begun: WeakSet[Recording] = WeakSet()

    @classmethod
    def configured(cls) -> "Calls | None":
        """Give those that the environment names; None where it names none.

        Raises:
            BadSetting: when a setting cannot be read.
        """
        bases = settings.POLICY_URLS.read()
        return cls(PolicyUrls(bases), settings.POLICY_VERSION.read()) if bases else None

    def begin(self, method: str, url: str, body: Callable[[], bytes | None]) -> Recording | None:
        """Begin to record a request; None where it is to be left alone.

        That is one to no policy, one whose body is not to be read, or where nothing traces.
        """
        try:
            operation = self._urls.operation(method, url)
            if operation is None or url in self._unwilling:
                return None
            if is_recorded() or not is_instrumentation_enabled():
                return None
            raw = body()
            request = read_request(operation, raw) if raw else None
            return None if request is None else self._recording(request)
        except Exception as error:  # a defect of ours, or a request that nobody thought of
            _logger.warning("ltrain: a call of %s is not recorded: %r", url, error)
            return None

    def _recording(self, request: Request) -> Recording | None:
        where = trace.set_span_in_context(innermost_span())
        span = CallSpan(self._tracer, where, SpanKind.CLIENT, request)
        if not span.span.is_recording():
            return None
        span.sampled_by(request.model, self._version)
        recording = Recording(request, span)
        self._begun.add(recording)
        return recording

    def leave(self) -> None:
        """End what is still being answered: the process ends."""
        for recording in list(self._begun):
            recording.leave()

    def refuses(self, url: str, status: int) -> None:
        """Remember that a server takes a request only without ours in it, and say so once."""
        self._unwilling.add(url)
        _logger.warning(
            "ltrain: %s is in LTRAIN_POLICY_URLS, but answers %s when it is asked for token ids. "
            "Its calls are left alone from now on.",
            url,
            status,
        )
