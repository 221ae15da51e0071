"""Recognises requests to policy servers: those below the base URLs of LTRAIN_POLICY_URLS."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from ltrain_instrument.tokens.request import Operation

ROUTES: dict[str, Operation] = {"/chat/completions": "chat", "/completions": "text_completion"}
"""Path suffixes of endpoints that return token ids; `/v1/responses` of known servers does not."""

_PORTS = {"http": 80, "https": 443}


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
