"""Takes what a user's patterns match out of values, JSON inside of texts included."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ltrain_instrument import attributes
from ltrain_instrument.texts import parsed, same, written

MARK = "[redacted]"

KEPT = frozenset(
    (
        *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.system", "mcp.method.name"),
        *("openinference.span.kind", "traceloop.span.kind", "llm.request.type"),
        attributes.EVALUATION_NAME,
    )
)
"""Names whose values say what a span is, a word of a closed set: never content, like `ltrain.*`."""

URLS = ("url.full", "http.url", "url.query", "http.target")
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
    """Patterns, applied to texts; without any, everything is taken out."""

    def __init__(self, patterns: Sequence[re.Pattern[str]] | None) -> None:
        self._patterns = patterns

    def value(self, value: Any) -> Any:
        """Give a value without what matches; the same object where nothing does."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return same(value, {self.value(key): self._leaf(one) for key, one in value.items()})
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return same(value, [self._leaf(one) for one in value])
        if isinstance(value, bytes):
            text = value.decode(errors="replace")
            return value if self.text(text) == text else MARK
        return value

    def text(self, text: str) -> str:
        """Give a text without what matches; JSON stays JSON unless a match spans its parts."""
        if self._patterns is None:
            return MARK if text else text
        inside = parsed(text)
        if inside is not None:
            kept = self.value(inside)
            text = text if kept is inside else written(kept)
        for pattern in self._patterns:
            text = pattern.sub(MARK, text)
        return text

    def _leaf(self, value: Any) -> Any:
        """Treat a number inside of a value as its text; true, false and null say nothing."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value if self.text(str(value)) == str(value) else MARK
        return self.value(value)


def judged(name: str) -> bool:
    """Say whether an attribute is looked at: identity and kinds are not, or nothing would join."""
    if name.startswith("ltrain."):
        return name.startswith(attributes.ASKED) or name == attributes.OUTCOME_REASON
    return name not in KEPT


def without_credentials(name: str, value: Any) -> Any:
    """Give the value of an `http.*` or `url.*` attribute without passwords and keys."""
    if name in URLS and isinstance(value, str):
        return bare(value)
    return MARK if _HEADER.match(name) else value


def bare(url: str) -> str:
    """Give an address without the passwords and keys in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MARK
    if "@" in parts.netloc:
        url = urlunsplit(parts._replace(netloc=f"{MARK}@{parts.netloc.rpartition('@')[2]}"))
    found = _SECRET.sub(rf"\1{MARK}", url if "?" in url else f"?{url}")
    return found if "?" in url else found[1:]
