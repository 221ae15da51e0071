"""Which requests go to a policy server: those below the base URLs of LTRAIN_POLICY_URLS."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from ltrain_instrument.tokens.request import Operation

ROUTES: dict[str, Operation] = {"/chat/completions": "chat", "/completions": "text_completion"}
"""Ends of the paths that answer with token ids; `/v1/responses` does not, in any server known."""

_PORTS = {"http": 80, "https": 443}


class PolicyUrls:
    """Base URLs, by scheme, host, port and the beginning of the path."""

    def __init__(self, bases: Sequence[str]) -> None:
        self._bases = [(_place(base), urlsplit(base).path.rstrip("/")) for base in bases]

    def operation(self, method: str, url: str) -> Operation | None:
        """Say what a request asks a policy for; None where it is no policy's, or not for tokens."""
        if method.upper() != "POST":
            return None
        path = urlsplit(url).path
        operation = next((ROUTES[end] for end in ROUTES if path.endswith(end)), None)
        if operation is None:
            return None
        place = _place(url)
        below = any(place == at and path.startswith(f"{base}/") for at, base in self._bases)
        return operation if below else None


def _place(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
