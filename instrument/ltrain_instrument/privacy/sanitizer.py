"""The last processor before the exporters: redacts a span, makes it encodable and limits its size.

It never raises. If a value cannot be processed, the span is sent without its values, so that
nothing is sent unchecked and the rest of the span is kept.
"""

import logging
from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import Status

from ltrain_instrument import attributes
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.privacy.content import is_content, is_content_recorded
from ltrain_instrument.privacy.limits import fit_values
from ltrain_instrument.privacy.redaction import (
    UNREDACTED_NAMES,
    Redaction,
    is_redactable,
    remove_credentials,
)
from ltrain_instrument.privacy.span_fields import (
    NAME,
    SpanField,
    read_span_fields,
    write_span_fields,
)
from ltrain_instrument.privacy.values import (
    dump_json,
    encoded_size,
    is_encodable,
    is_token_attribute,
    remove_tokens,
    to_otlp_value,
)
from ltrain_instrument.settings import REDACT, SPAN_LIMIT

_logger = logging.getLogger("ltrain.sanitizer")

_MESSAGES = ("gen_ai.input.messages", "gen_ai.output.messages")
"""The texts of the token ids; without them nothing tells whether the ids contain redacted text."""


class Sanitizer(SpanProcessor):
    """A processor that stands before the exporting processors."""

    def __init__(self, redaction: Redaction | None, limit: int) -> None:
        self.redaction = redaction
        self._limit = limit
        self._removes_content = not is_content_recorded()
        self.failed = 0
        """Number of spans whose values were removed, because one of them could not be processed."""

    @classmethod
    def from_environ(cls) -> "Sanitizer":
        """Read the patterns and the limit.

        Raises:
            BadSetting: when one of them is invalid.
        """
        return cls(_read_redaction(), SPAN_LIMIT.read())

    @classmethod
    def for_agent(cls) -> "Sanitizer":
        """Read the settings; with invalid ones the agent runs on, but sends no text unredacted."""
        try:
            return cls.from_environ()
        except BadSetting as error:
            message = str(error)
        # Only one of two invalid settings is named; the other follows once it is fixed
        if SPAN_LIMIT.name in message:
            _logger.warning("ltrain: %s", message)
            return cls(_read_redaction(), int(SPAN_LIMIT.default))
        _logger.warning("ltrain: %s Until it is fixed, no text of any span is sent.", message)
        return cls(Redaction(None), int(SPAN_LIMIT.default))

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: attributes may be set until the span ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Change the span in place: all exporters get the same object."""
        try:
            if self.redaction is not None or self._removes_content or not self._is_clean(span):
                self._sanitize(span)
        except Exception as error:  # values may have any type; the agent must not fail
            _remove_values(span)
            if not self.failed:
                _logger.warning(
                    "ltrain: the values of a span of '%s' cannot be processed and are removed "
                    "(%s). This warning appears once.",
                    span.instrumentation_scope.name if span.instrumentation_scope else "",
                    type(error).__name__,
                )
            self.failed += 1

    def _is_clean(self, span: ReadableSpan) -> bool:
        """Return, at low cost, whether there is nothing to do, as for nearly all spans."""
        if span._events or span._links or span.status.description:
            return False
        total = 0
        values: Mapping[str, Any] = span.attributes or {}
        for name, value in values.items():
            if name.startswith(("http.", "url.")):
                return False
            for each in value if isinstance(value, tuple) else (value,):
                size = _clean_size(each)
                if size is None:
                    return False
                total += size
        return total <= self._limit and is_encodable(span.name)

    def _sanitize(self, span: ReadableSpan) -> None:
        fields = read_span_fields(span)
        changes: dict[SpanField, Any] = {}
        for field, value in fields.items():
            new_value = remove_credentials(field.name, to_otlp_value(value))
            if new_value is not value:
                changes[field] = new_value
        fields |= changes
        if self._removes_content:
            removed = {field: None for field in fields if is_content(field.part, field.name)}
            fields |= removed
            changes |= removed
        if self.redaction is not None:
            redacted = _redact(self.redaction, span, fields)
            fields |= redacted
            changes |= redacted
        changes |= self._shorten(
            {field: value for field, value in fields.items() if value is not None}
        )
        write_span_fields(span, changes)

    def _shorten(self, fields: Mapping[SpanField, Any]) -> dict[SpanField, Any]:
        tokens = frozenset(f for f, value in fields.items() if is_token_attribute(f.name, value))
        changes = fit_values(fields, tokens, self._limit)
        if not changes:
            return {}
        original_sizes = dump_json({field.name: encoded_size(fields[field]) for field in changes})
        return changes | {SpanField("attribute", 0, attributes.CUT): original_sizes}

    def shutdown(self) -> None:
        """Do nothing: nothing is buffered."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Return True: nothing is buffered."""
        return True


def _clean_size(value: object) -> int | None:
    """Return the maximum bytes of a value that can be encoded as it is; None for any other."""
    if isinstance(value, str):
        if value.isascii():
            return len(value)
        return 4 * len(value) if is_encodable(value) else None
    if isinstance(value, bool | float) or (isinstance(value, int) and not abs(value) >> 62):
        return 9
    return None


def _read_redaction() -> Redaction | None:
    patterns = REDACT.read()
    return Redaction(patterns) if patterns else None


def _redact(
    redaction: Redaction, span: ReadableSpan, fields: Mapping[SpanField, Any]
) -> dict[SpanField, Any]:
    """Return replacements for values that match, and for the tokens that decode to them."""
    scope = span.instrumentation_scope
    is_ltrain_span = scope is not None and scope.name.startswith("ltrain.")
    redacted: dict[SpanField, Any] = {}
    for field, value in fields.items():
        if is_redactable(field.name) and not (is_ltrain_span and field == NAME):
            new_value = redaction.redact_value(value)
            if new_value is not value and new_value != value:
                redacted[field] = new_value
    tokens = [field for field, value in fields.items() if is_token_attribute(field.name, value)]
    has_messages = all(SpanField("attribute", 0, name) in fields for name in _MESSAGES)
    if not redacted and (has_messages or not tokens):
        return {}
    for field, value in {**fields, **redacted}.items():
        new_value = remove_tokens(value)
        if new_value is not value:
            redacted[field] = new_value
    redacted |= dict.fromkeys(tokens)
    return redacted | {SpanField("attribute", 0, attributes.REDACTED): True}


def _remove_values(span: ReadableSpan) -> None:
    """Remove all values except identity, counts and times."""
    remaining: dict[str, str | int] = {attributes.REDACTED: True}
    for name, value in (span.attributes or {}).items():
        if (
            not is_redactable(name)
            and name not in UNREDACTED_NAMES
            and not is_token_attribute(name, value)
        ):
            remaining[name] = value if isinstance(value, int) else to_otlp_value(str(value))
    span._attributes = remaining
    span._events, span._links = (), ()
    span._status = Status(span.status.status_code)
    span._name = to_otlp_value(span.name)
