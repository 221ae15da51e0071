"""The last look at a span before any exporter sees it: redacted, readable, short enough.

It never raises. Where a value cannot be handled, the span goes without its values, so that
nothing leaves unseen and nothing else is lost.
"""

import logging
from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import Status

from ltrain_instrument import attributes
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.limits import fitted
from ltrain_instrument.places import NAME, Place, change, values
from ltrain_instrument.redaction import KEPT, Redaction, judged, without_credentials
from ltrain_instrument.settings import REDACT, SPAN_LIMIT
from ltrain_instrument.texts import encodable, plain, size, token_attribute, without_tokens, written

_logger = logging.getLogger("ltrain.screen")

_MESSAGES = ("gen_ai.input.messages", "gen_ai.output.messages")
"""The texts that token ids stand for; ids without them cannot be judged."""


class Screen(SpanProcessor):
    """A processor that stands before those that export."""

    def __init__(self, redaction: Redaction | None, limit: int) -> None:
        self.redaction = redaction
        self._limit = limit
        self.failed = 0
        """Spans whose values were left out, because one of them could not be handled."""

    @classmethod
    def from_environ(cls) -> "Screen":
        """Read the patterns and the limit.

        Raises:
            BadSetting: when one of them cannot be read.
        """
        return cls(_redaction(), SPAN_LIMIT.read())

    @classmethod
    def for_agent(cls) -> "Screen":
        """Read the settings; an agent runs on with bad ones, but nothing of it leaves unread."""
        try:
            return cls.from_environ()
        except BadSetting as error:
            fault = str(error)
        # Of two bad settings one is said; the other is, once that is mended
        if SPAN_LIMIT.name in fault:
            _logger.warning("ltrain: %s", fault)
            return cls(_redaction(), int(SPAN_LIMIT.default))
        _logger.warning("ltrain: %s Until then no text of any span is sent.", fault)
        return cls(Redaction(None), int(SPAN_LIMIT.default))

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: values come until the end."""

    def on_end(self, span: ReadableSpan) -> None:
        """Change what has to be changed, in the one object that all exporters get."""
        try:
            if self.redaction is not None or not self._harmless(span):
                self._look(span)
        except Exception as error:  # values are anything; the agent must not hear of it
            _strip(span)
            if not self.failed:
                _logger.warning(
                    "ltrain: the values of a span of '%s' cannot be handled and are left out (%s). "
                    "Said once.",
                    span.instrumentation_scope.name if span.instrumentation_scope else "",
                    type(error).__name__,
                )
            self.failed += 1

    def _harmless(self, span: ReadableSpan) -> bool:
        """Say, cheaply, that there is nothing to do: the way that nearly all spans take."""
        if span._events or span._links or span.status.description:
            return False
        total = 0
        own: Mapping[str, Any] = span.attributes or {}
        for name, value in own.items():
            if isinstance(value, str):
                total += len(value) if value.isascii() else 4 * len(value)
                if name.startswith(("http.", "url.")) or not encodable(value):
                    return False
            elif not isinstance(value, bool | float) and (
                not isinstance(value, int) or abs(value) >> 62
            ):
                return False
        return total <= self._limit and encodable(span.name)

    def _look(self, span: ReadableSpan) -> None:
        seen = values(span)
        new: dict[Place, Any] = {}
        for place, value in seen.items():
            kept = without_credentials(place.name, plain(value))
            if kept is not value:
                new[place] = kept
        seen |= new
        if self.redaction is not None:
            hidden = _hidden(self.redaction, span, seen)
            seen |= hidden
            new |= hidden
        new |= self._fitted({place: value for place, value in seen.items() if value is not None})
        change(span, new)

    def _fitted(self, seen: Mapping[Place, Any]) -> dict[Place, Any]:
        tokens = frozenset(p for p, value in seen.items() if token_attribute(p.name, value))
        new = fitted(seen, tokens, self._limit)
        if not new:
            return {}
        had = written({place.name: size(seen[place]) for place in new})
        return new | {Place("attribute", 0, attributes.CUT): had}

    def shutdown(self) -> None:
        """Do nothing: nothing is held."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Hold nothing back."""
        return True


def _redaction() -> Redaction | None:
    patterns = REDACT.read()
    return Redaction(patterns) if patterns else None


def _hidden(
    redaction: Redaction, span: ReadableSpan, seen: Mapping[Place, Any]
) -> dict[Place, Any]:
    """Give what takes the place of what matches, and of the tokens that decode to it."""
    scope = span.instrumentation_scope
    ours = scope is not None and scope.name.startswith("ltrain.")
    hidden: dict[Place, Any] = {}
    for place, value in seen.items():
        if judged(place.name) and not (ours and place == NAME):
            kept = redaction.value(value)
            if kept is not value and kept != value:
                hidden[place] = kept
    tokens = [place for place, value in seen.items() if token_attribute(place.name, value)]
    texts = all(Place("attribute", 0, name) in seen for name in _MESSAGES)
    if not hidden and (texts or not tokens):
        return {}
    for place, value in {**seen, **hidden}.items():
        kept = without_tokens(value)
        if kept is not value:
            hidden[place] = kept
    hidden |= dict.fromkeys(tokens)
    return hidden | {Place("attribute", 0, attributes.REDACTED): True}


def _strip(span: ReadableSpan) -> None:
    """Leave identity, counts and times."""
    kept: dict[str, str | int] = {attributes.REDACTED: True}
    for name, value in (span.attributes or {}).items():
        if not judged(name) and name not in KEPT and not token_attribute(name, value):
            kept[name] = value if isinstance(value, int) else plain(str(value))
    span._attributes = kept
    span._events, span._links = (), ()
    span._status = Status(span.status.status_code)
    span._name = plain(span.name)
