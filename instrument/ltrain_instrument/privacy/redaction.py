"""Removes text that matches a user's patterns from values, including JSON inside texts."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ltrain_instrument import attributes
from ltrain_instrument.privacy.values import dump_json, parse_json, reuse_if_equal

MARK = "[redacted]"
OPENINFERENCE_KIND = "openinference.span.kind"
"""OpenInference's attribute for the kind of a span."""

UNREDACTED_NAMES = frozenset(
    (
        *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.system", "mcp.method.name"),
        *(OPENINFERENCE_KIND, "traceloop.span.kind", "llm.request.type"),
        attributes.EVALUATION_NAME,
    )
)
"""Attributes that hold the kind of a span, from a closed set of words: never content."""

_LTRAIN_CONTENT = frozenset(
    (*(attributes.OUTCOME_REASON, attributes.TASK_INPUT, attributes.TASK_FIELDS), attributes.RESULT)
)
"""The attributes of ltrain's own that hold content."""

_URL_ATTRIBUTES = ("url.full", "http.url", "url.query", "http.target")
_HEADER = re.compile(
    r"^http\.(?:request|response)\.header\.(?:.*[-_])?"
    r"(?:authorization|cookie|key|token|secret|signature)$",
    re.I,
)
_SECRET = re.compile(
    r"([?&;](?:[\w.-]*[_.-])?(?:api-?key|key|token|secret|password|passwd|sig|signature|code"
    r"|awsaccesskeyid|access-?token)=)[^&;#\s]+",
    re.I,
)


class Redaction:
    """Patterns that are applied to texts; None redacts every text."""

    def __init__(self, patterns: Sequence[re.Pattern[str]] | None) -> None:
        self._patterns = patterns

    def redact_value(self, value: Any) -> Any:
        """Return a value with matches replaced; the same object if nothing matches."""
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, Mapping):
            redacted = {
                self.redact_value(key): self._redact_leaf(each) for key, each in value.items()
            }
            return reuse_if_equal(value, redacted)
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return reuse_if_equal(value, [self._redact_leaf(each) for each in value])
        if isinstance(value, bytes):
            text = value.decode(errors="replace")
            return value if self.redact_text(text) == text else MARK
        return value

    def redact_text(self, text: str) -> str:
        """Return a text with matches replaced; JSON stays valid unless a match spans its parts."""
        if self._patterns is None:
            return MARK if text else text
        parsed = parse_json(text)
        if parsed is not None:
            redacted = self.redact_value(parsed)
            text = text if redacted is parsed else dump_json(redacted)
        for pattern in self._patterns:
            text = pattern.sub(MARK, text)
        return text

    def _redact_leaf(self, value: Any) -> Any:
        """Redact a number inside a value as its text; true, false and null stay."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value if self.redact_text(str(value)) == str(value) else MARK
        return self.redact_value(value)


def is_redactable(name: str) -> bool:
    """Return whether an attribute is redacted; identity and kinds must stay, to join spans."""
    if name.startswith("ltrain."):
        return name.startswith(attributes.ASKED) or name in _LTRAIN_CONTENT
    return name not in UNREDACTED_NAMES


def remove_credentials(name: str, value: Any) -> Any:
    """Return the value of an `http.*` or `url.*` attribute without passwords and keys."""
    if name in _URL_ATTRIBUTES and isinstance(value, str):
        return remove_url_credentials(value)
    return MARK if _HEADER.match(name) else value


def remove_url_credentials(url: str) -> str:
    """Return a URL without passwords and keys."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MARK
    if "@" in parts.netloc:
        url = urlunsplit(parts._replace(netloc=f"{MARK}@{parts.netloc.rpartition('@')[2]}"))
    if "?" in url:
        return _SECRET.sub(rf"\1{MARK}", url)
    return _SECRET.sub(rf"\1{MARK}", f"?{url}")[1:]
