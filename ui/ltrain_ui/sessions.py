"""The browsers that have signed in, and whose they are."""

import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256

LIFETIME = 12 * 3600
"""Seconds until a browser must sign in again."""
MAX_FAILURES = 5
"""Wrong codes or keys a minute from one address; more are refused, whatever they are."""
MAX_CLIENTS = 1024
"""Addresses whose wrong codes are remembered."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """A person who has signed in."""

    person: str
    """The name under which feedback is stored."""
    key: str = field(default="", repr=False)
    """The key of the store with which they read; '' for the user of this process."""


CURRENT: ContextVar[Visitor] = ContextVar("visitor")
"""Who made the request that is answered in this context."""


def current_key() -> str:
    """Return the key with which the store is read in this request; '' for that of the address."""
    visitor = CURRENT.get(None)
    return visitor.key if visitor is not None else ""


class Sessions:
    """The sessions of this process, by the digest of their token, and wrong codes and keys."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._visitors: dict[str, tuple[float, Visitor]] = {}
        """When each session ends, and whose it is."""
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def begin(self, visitor: Visitor) -> str:
        """Return the token of a new session."""
        token, now = secrets.token_urlsafe(32), self._clock()
        self._visitors = {key: one for key, one in self._visitors.items() if one[0] > now}
        self._visitors[_digest(token)] = (now + LIFETIME, visitor)
        return token

    def visitor(self, token: str | None) -> Visitor | None:
        """Return whose session a token is of; None if it is of none, or of one that has ended."""
        end, visitor = self._visitors.get(_digest(token or ""), (0.0, None))
        return visitor if end > self._clock() else None

    def end(self, token: str | None) -> None:
        """End a session."""
        self._visitors.pop(_digest(token or ""), None)

    def add_failure(self, client: str) -> None:
        """Count a wrong code or key from an address."""
        self._failures.setdefault(client, deque(maxlen=MAX_FAILURES)).append(self._clock())
        self._failures.move_to_end(client)
        while len(self._failures) > MAX_CLIENTS:
            self._failures.popitem(last=False)

    def is_limited(self, client: str) -> bool:
        """Return whether too many wrong codes or keys came from an address in the last minute."""
        failures = self._failures.get(client, deque())
        return len(failures) == MAX_FAILURES and self._clock() - failures[0] < 60


def _digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()
