"""Sessions of ClickHouse's HTTP interface: what SET, USE and temporary tables leave behind.

A session is a list of statements that every query of it runs first. Only one that made a temporary
table holds a connection, in which all its queries then run. One query at a time: a second is told
so with ClickHouse's own error.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from ltrain_collector.engine import Engine
from ltrain_collector.errors import QueryFailed

TIMEOUT = 60.0
"""Seconds that a session lives without a query, unless `session_timeout` says otherwise."""
LONGEST = 3600.0
GRACE = 1.0
"""Seconds that a query waits for the one before it: a client that has read all rows, or has left,
may ask again before that one has ended."""
MOST = 4096
"""Sessions at a time; the one that was used longest ago makes room."""
MOST_CONNECTED = 64
"""Sessions with temporary tables at a time: each holds a connection."""


LONGEST_TEXT = 1 << 19
"""Characters of all SET and USE of a session: every query of it runs them again."""


_SAID = {
    372: "Code: 372. DB::Exception: Session not found",
    373: "Code: 373. DB::Exception: Session is locked by a concurrent client.",
}


@dataclass(slots=True)
class Session:
    statements: list[str] = field(default_factory=list)
    """SET and USE, in their order."""
    connection: Any = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    expires: float = 0.0

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Sessions:
    """All sessions; used from one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[tuple[str, str], Session] = {}

    @asynccontextmanager
    async def held(
        self, owner: str, name: str, timeout: str, check: bool
    ) -> AsyncIterator[Session | None]:
        """Give the session, made where it is missing, to one query; None where none is named.

        Args:
            owner: whose key it is: nobody enters another's session.

        Raises:
            QueryFailed: 373 when it is in use, 372 when `check` is set and there is none.
        """
        if not name:
            yield None
            return
        seconds = _seconds(timeout)
        self._expire()
        session = self._known.pop((owner, name), None)
        if session is None:
            if check:
                raise QueryFailed(f"{_SAID[372]} (SESSION_NOT_FOUND)", 372)
            session = Session()
        self._known[owner, name] = session  # the last used is the last in order
        try:
            async with asyncio.timeout(GRACE):
                await session.lock.acquire()
        except TimeoutError:
            raise QueryFailed(f"{_SAID[373]} (SESSION_IS_LOCKED)", 373) from None
        try:
            yield session
        finally:
            session.lock.release()
            session.expires = time.monotonic() + seconds

    def keep(self, session: Session, statements: list[str]) -> None:
        """Let a session remember its statements.

        Raises:
            QueryFailed: when they are too long.
        """
        if sum(map(len, statements)) > LONGEST_TEXT:
            raise QueryFailed(
                f"Code: 164. DB::Exception: The SET and USE of this session are longer than "
                f"{LONGEST_TEXT >> 10} KiB. Begin another session, or send settings in the URL. "
                "(READONLY)",
                164,
            )
        session.statements = statements

    def connect(self, session: Session) -> Any:
        """Give the session a connection of its own, for its temporary tables.

        Raises:
            QueryFailed: when too many have one.
        """
        if session.connection is None:
            if (
                sum(one.connection is not None for one in list(self._known.values()))
                >= MOST_CONNECTED
            ):
                raise QueryFailed(
                    f"Code: 202. DB::Exception: {MOST_CONNECTED} sessions hold temporary tables; "
                    "end one, or let it expire. (TOO_MANY_SIMULTANEOUS_QUERIES)",
                    202,
                )
            session.connection = self._engine.connect(session.statements)
        return session.connection

    def close(self) -> None:
        """Close what is held."""
        for session in self._known.values():
            session.close()

    def _expire(self) -> None:
        now = time.monotonic()
        idle = [(key, one) for key, one in self._known.items() if not one.lock.locked()]
        over = [key for key, one in idle if one.expires < now]
        over += [key for key, one in idle if one.expires >= now][: max(len(self._known) - MOST, 0)]
        for key in over:
            self._known.pop(key).close()


def _seconds(timeout: str) -> float:
    try:
        seconds = float(timeout or TIMEOUT)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= LONGEST:
        raise QueryFailed(
            f"Code: 374. DB::Exception: Session timeout '{timeout}' is not above 0 and up to "
            f"{LONGEST:.0f} seconds. (INVALID_SESSION_TIMEOUT)",
            374,
        )
    return seconds
