"""The secret that signs a browser in: the code of the printed link, or a key of the store.

On this machine it is a code that works for an hour, as often as the link is opened. Other users of
the machine can open the port too, so no page is shown without it. The code is in the fragment of
the printed link: a browser sends no fragment, so no log contains it.

Beyond this machine it is a key that can read. It is checked again at every request, so a key that
was revoked ends its sessions.
"""

import hmac
import secrets
import time
from collections.abc import Callable
from typing import Protocol

from ltrain_collector.access import Grant, Keys
from ltrain_collector.errors import HttpError
from ltrain_collector.feedback import local_person
from ltrain_ui.sessions import Visitor

DENIED = (401, 403)
CODE_LIFETIME = 3600.0
"""Seconds in which a code signs browsers in."""


class SignIn(Protocol):
    """One way to sign in."""

    by_key: bool
    """Whether a person types a key; else a script sends the code of the link."""
    refusal: str
    """The sentence for a wrong code or key."""

    def admit(self, secret: str) -> Visitor | None:
        """Return who signs in with a code or key; None if it is wrong."""

    def still_admits(self, visitor: Visitor) -> bool:
        """Return whether somebody who has signed in may read on."""


class CodeSignIn:
    """A code that signs browsers in for an hour; the first attempt after it brings another one."""

    by_key = False
    refusal = (
        "This link is older than an hour, or its `ltrain ui` has ended. The terminal of `ltrain "
        "ui` shows a new one; for `ltrain run --ui` and `ltrain demo --ui` it is the last of "
        "logs/ui.log in LTRAIN_HOME. Without either, `ltrain ui --port 0` prints a link."
    )

    def __init__(
        self, announce: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Make the first code.

        Args:
            announce: called when an expired code was replaced.
        """
        self._announce, self._clock = announce, clock
        self._renew()

    def admit(self, secret: str) -> Visitor | None:
        """Return the user of this process if the code is right and not expired."""
        if not hmac.compare_digest(secret.encode(), self.code.encode()):
            return None
        if self._clock() < self._ends:
            return Visitor(local_person())
        self._renew()
        self._announce()
        return None

    def _renew(self) -> None:
        self.code = secrets.token_urlsafe(24)
        self._ends = self._clock() + CODE_LIFETIME

    def still_admits(self, visitor: Visitor) -> bool:
        """Return True: a code signs in until the session ends."""
        return True


class KeySignIn:
    """The keys of a store that can read."""

    by_key = True
    refusal = "This key is unknown, revoked or expired, or its role cannot read."

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def admit(self, secret: str) -> Visitor | None:
        """Return the holder of a key, under its note and its id.

        Raises:
            BadKeys: when the file of keys cannot be read.
        """
        grant = self._grant(secret)
        if grant is None:
            return None
        notes = {key.id: key.note for key in self._keys.made_keys()}
        note = notes.get(grant.name, "")
        return Visitor(f"{note} ({grant.name})" if note else grant.name, secret)

    def still_admits(self, visitor: Visitor) -> bool:
        """Return whether the key is still one that can read.

        Raises:
            BadKeys: when the file of keys cannot be read.
        """
        return self._grant(visitor.key) is not None

    def _grant(self, key: str) -> Grant | None:
        try:
            return self._keys.authorize_read({"authorization": f"Bearer {key}"})
        except HttpError as error:
            if error.status in DENIED:
                return None
            raise
