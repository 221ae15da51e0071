"""Sessions of ClickHouse's HTTP interface: the effects of SET, USE and temporary tables.

A session is a list of statements that each of its queries runs first. Only a session with a
temporary table has a connection, in which all its queries then run. A session runs one query at a
time: a second one gets ClickHouse's own error.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import Engine

DEFAULT_TIMEOUT = 60.0
"""Seconds after its last query at which a session expires, unless `session_timeout` is set."""
MAX_TIMEOUT = 3600.0
LOCK_TIMEOUT = 1.0
"""Seconds that a query waits for the previous one: a client that has read all rows, or has
disconnected, can send the next query before the previous one has ended."""
MAX_SESSIONS = 4096
"""Number of sessions; beyond it, the least recently used one is closed."""
MAX_CONNECTIONS = 64
"""Number of sessions with temporary tables: each has a connection."""


MAX_STATEMENT_CHARACTERS = 1 << 19
"""Characters of all SET and USE of a session: each of its queries runs them again."""


@dataclass(slots=True)
class Session:
    statements: list[str] = field(default_factory=list)
    """SET and USE statements, in order."""
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
        self._sessions: dict[tuple[str, str], Session] = {}

    @asynccontextmanager
    async def acquire(self, owner: str, name: str, timeout: str) -> AsyncIterator[Session | None]:
        """Lock a session for one query, and create it if it is missing; yield None without a name.

        Args:
            owner: the name of the key; keys cannot use sessions of each other.
        """
        if not name:
            yield None
            return
        seconds = _parse_timeout(timeout)
        self._expire()
        session = self._sessions.pop((owner, name), None) or Session()
        self._sessions[owner, name] = session  # the most recently used session is last
        try:
            async with asyncio.timeout(LOCK_TIMEOUT):
                await session.lock.acquire()
        except TimeoutError:
            raise QueryFailed(
                "Code: 373. DB::Exception: Session is locked by a concurrent client. "
                "(SESSION_IS_LOCKED)",
                373,
            ) from None
        try:
            yield session
        finally:
            session.lock.release()
            session.expires = time.monotonic() + seconds

    def set_statements(self, session: Session, statements: list[str]) -> None:
        """Store the statements of a session."""
        if sum(map(len, statements)) > MAX_STATEMENT_CHARACTERS:
            raise QueryFailed(
                f"Code: 164. DB::Exception: The SET and USE of this session are longer than "
                f"{MAX_STATEMENT_CHARACTERS >> 10} KiB. Start another session, or send "
                "settings in the URL. (READONLY)",
                164,
            )
        session.statements = statements

    def open_connection(self, session: Session) -> Any:
        """Return the session's connection for temporary tables; open it if it has none."""
        if session.connection is None:
            if (
                sum(one.connection is not None for one in list(self._sessions.values()))
                >= MAX_CONNECTIONS
            ):
                raise QueryFailed(
                    f"Code: 202. DB::Exception: {MAX_CONNECTIONS} sessions hold temporary tables; "
                    "end one, or let it expire. (TOO_MANY_SIMULTANEOUS_QUERIES)",
                    202,
                )
            session.connection = self._engine.connect(session.statements)
        return session.connection

    def close(self) -> None:
        """Close the connections of all sessions."""
        for session in self._sessions.values():
            session.close()

    def _expire(self) -> None:
        now = time.monotonic()
        idle = [(key, one) for key, one in self._sessions.items() if not one.lock.locked()]
        over = [key for key, one in idle if one.expires < now]
        over += [key for key, one in idle if one.expires >= now][
            : max(len(self._sessions) - MAX_SESSIONS, 0)
        ]
        for key in over:
            self._sessions.pop(key).close()


def _parse_timeout(timeout: str) -> float:
    try:
        seconds = float(timeout or DEFAULT_TIMEOUT)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= MAX_TIMEOUT:
        raise QueryFailed(
            f"Code: 374. DB::Exception: Session timeout '{timeout}' is not above 0 and up to "
            f"{MAX_TIMEOUT:.0f} seconds. (INVALID_SESSION_TIMEOUT)",
            374,
        )
    return seconds
