"""Sign-in: a code that works once, and the cookie that a browser gets for it.

Other users of the machine can open the port too, so no page is shown without the cookie. The code
is in the fragment of the printed link: a browser sends no fragment, so no log contains it.
"""

import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from hashlib import sha256

LIFETIME = 12 * 3600
"""Seconds until a browser must sign in again."""
MAX_FAILURES = 5
"""Wrong codes a minute; more are refused, whatever they are."""


class Sessions:
    """The code that is valid now, and the browsers that have signed in."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: dict[str, float] = {}
        """When each session ends, by the digest of its token."""
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)
        self.code = secrets.token_urlsafe(24)

    def sign_in(self, code: str) -> str | None:
        """Exchange the code for the token of a new session; None if it is wrong.

        The code is then another one.
        """
        if not hmac.compare_digest(code.encode(), self.code.encode()):
            self._failures.append(self._clock())
            return None
        self.code, token = secrets.token_urlsafe(24), secrets.token_urlsafe(32)
        now = self._clock()
        self._ends = {key: end for key, end in self._ends.items() if end > now}
        self._ends[_digest(token)] = now + LIFETIME
        return token

    def is_limited(self) -> bool:
        """Return whether there were too many wrong codes in the last minute."""
        full = len(self._failures) == MAX_FAILURES
        return full and self._clock() - self._failures[0] < 60

    def is_signed_in(self, token: str | None) -> bool:
        """Return whether the token is of a session that has not ended."""
        return token is not None and self._ends.get(_digest(token), 0.0) > self._clock()


def _digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()
