"""The last processor before the exporters: redacts a span, makes it encodable and limits its size.

It never raises. If a value cannot be processed, the span is sent without its values, so that
nothing is sent unchecked and the rest of the span is kept.
"""

import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Event, ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import Link, Status

from ltrain_instrument import attributes
from ltrain_instrument.errors import BadSetting
from ltrain_instrument.privacy.content import is_content, is_content_recorded
from ltrain_instrument.privacy.redaction import (
    UNREDACTED_NAMES,
    Redaction,
    is_redactable,
    remove_credentials,
)
from ltrain_instrument.privacy.values import (
    dump_json,
    encoded_size,
    is_encodable,
    is_token_attribute,
    parse_json,
    remove_tokens,
    to_otlp_value,
)
from ltrain_instrument.settings import REDACT, SPAN_LIMIT

_logger = logging.getLogger("ltrain.sanitizer")


class SpanField(NamedTuple):
    """The location of one value in a span."""

    part: str
    """One of attribute, event, link, event name, status and name."""
    number: int
    """Index of the event or link."""
    name: str


STATUS = SpanField("status", 0, "status")
NAME = SpanField("name", 0, "name")

CUT = SpanField("attribute", 0, attributes.CUT)
REDACTED = SpanField("attribute", 0, attributes.REDACTED)

NewValues = Mapping[SpanField, Any]
"""New values by field; None removes the value."""


def read_span_fields(span: ReadableSpan) -> dict[SpanField, Any]:
    """Return every value of a span: attributes, events, links, status and name."""
    fields: dict[SpanField, Any] = {NAME: span.name}
    if span.status.description:
        fields[STATUS] = span.status.description
    for name, value in (span.attributes or {}).items():
        fields[SpanField("attribute", 0, name)] = value
    for number, event in enumerate(span.events):
        fields[SpanField("event name", number, "event")] = event.name
        for name, value in (event.attributes or {}).items():
            fields[SpanField("event", number, name)] = value
    for number, link in enumerate(span.links):
        for name, value in (link.attributes or {}).items():
            fields[SpanField("link", number, name)] = value
    return fields


def write_span_fields(span: ReadableSpan, new: NewValues) -> None:
    """Write new values into a span.

    The SDK makes one readable copy of an ended span and passes it to every processor in turn, so a
    change by one processor is visible to the later ones.
    """
    values = _attributes(span.attributes, "attribute", 0, new)
    bounded = BoundedAttributes(attributes=values, immutable=False)  # the span may go on
    bounded.dropped = span.dropped_attributes
    span._attributes = bounded
    parts = {field.part for field in new}
    if parts & {"event", "event name"}:
        span._events = [_event(event, number, new) for number, event in enumerate(span.events)]
    if "link" in parts:
        span._links = [
            Link(link.context, _attributes(link.attributes, "link", number, new))
            for number, link in enumerate(span.links)
        ]
    if STATUS in new:
        span._status = Status(span.status.status_code, new[STATUS])
    span._name = new.get(NAME, span.name)


def _event(event: Event, number: int, new: NewValues) -> Event:
    name = new.get(SpanField("event name", number, "event"), event.name)
    return Event(name, _attributes(event.attributes, "event", number, new), event.timestamp)


def _attributes(
    old: Mapping[str, Any] | None, part: str, number: int, new: NewValues
) -> dict[str, Any]:
    changed = {field.name: value for field, value in new.items() if field[:2] == (part, number)}
    removed = {name for name, value in changed.items() if value is None}
    return {
        name: value for name, value in {**(old or {}), **changed}.items() if name not in removed
    }


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
        """Change a span that is too large already, so that its end costs little."""
        texts = (value for value in (span.attributes or {}).values() if isinstance(value, str))
        if sum(map(len, texts)) > self._limit:
            self.on_end(span)

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
        sizes = {field.name: encoded_size(fields[field]) for field in changes}
        earlier = parse_json(str(fields.get(CUT, ""))) or {}  # of the start of the span
        return changes | {CUT: dump_json({**sizes, **earlier})}

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
    was_redacted = REDACTED in fields  # at its start
    if not redacted and not was_redacted and (has_messages or not tokens):
        return {}
    for field, value in {**fields, **redacted}.items():
        new_value = remove_tokens(value)
        if new_value is not value:
            redacted[field] = new_value
    redacted |= dict.fromkeys(tokens)
    return redacted | {REDACTED: True}


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


Field = TypeVar("Field", bound=Hashable)

MIN_INNER_TEXT_BYTES = 256
"""Minimum bytes to which texts inside a value are cut; below it the value is cut as one text."""


def fit_values(
    values: Mapping[Field, Any], tokens: frozenset[Field], limit: int
) -> dict[Field, Any]:
    """Return replacements for values that exceed `limit` bytes together; None removes a value.

    The longest values are cut: text at a character, JSON at the texts inside it, so that it stays
    JSON. Token ids and log-probabilities are never cut: if they do not fit they are removed, and
    their counts stay.
    """
    sizes = {field: encoded_size(value) for field, value in values.items()}
    if sum(sizes.values()) <= limit:
        return {}
    available = limit - sum(sizes[field] for field in tokens)
    removed: dict[Field, Any] = {}
    if available < limit // 4:
        removed, available = dict.fromkeys(tokens), limit
    texts = {field: field_size for field, field_size in sizes.items() if field not in tokens}
    length = _common_length(sorted(texts.values()), available)
    too_long = (field for field, field_size in texts.items() if field_size > length)
    return removed | {field: shorten(values[field], length) for field in too_long}


def _common_length(sizes: Sequence[int], available: int) -> int:
    """Return the length in bytes to which the longest values must be cut so that all fit."""
    for number, smallest in enumerate(sizes):
        if smallest * (len(sizes) - number) > available:
            return max(0, available) // (len(sizes) - number)
        available -= smallest
    return sizes[-1] if sizes else 0


def shorten(value: Any, limit: int) -> Any:
    """Return the value in at most `limit` bytes; None if it has no texts to cut."""
    if isinstance(value, bytes):
        return value[:limit]
    parsed = parse_json(value) if isinstance(value, str) else value
    longest = limit - limit // 16
    if longest < MIN_INNER_TEXT_BYTES or not _has_long_texts(parsed, limit):
        parsed = None
    while parsed is not None and longest >= MIN_INNER_TEXT_BYTES:
        shortened = _cut(parsed, longest)
        candidate = dump_json(shortened) if isinstance(value, str) else shortened
        if encoded_size(candidate) <= limit:
            return candidate
        longest //= 2
    return _truncate(value, limit) if isinstance(value, str) else None


def _has_long_texts(parsed: Any, limit: int) -> bool:
    """Return whether a value fits into `limit` bytes once its texts are cut."""
    return parsed is not None and encoded_size(_cut(parsed, MIN_INNER_TEXT_BYTES)) <= limit


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return shorten(value, longest) if encoded_size(value) > longest else value
    if isinstance(value, Mapping):
        return {key: _cut(each, longest) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_cut(each, longest) for each in value]
    return value


def _truncate(text: str, limit: int) -> str:
    return text[:limit].encode(errors="replace")[:limit].decode(errors="ignore")
