"""The responses that the gateway keeps, bounded in bytes and in time.

* A response has its own items only; those before it are in the response that it continues. One that
  is used keeps all before it in use, so that the latest responses are forgotten first.
* A client finds the responses of its own key only.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

MAX_BYTES = 256 << 20
"""Bytes of all responses; the one that is unused for the longest time is forgotten first."""
RESPONSE_BYTES = 600
"""Bytes of a response apart from its JSON."""
IDLE = 3600.0
"""Seconds after which an unused response is forgotten."""

Key = tuple[str, str]
"""The owner and the id of a response."""


@dataclass(slots=True, eq=False)
class KeptResponse:
    """An answered response, and the items of its request."""

    key: Key
    previous: "KeptResponse | None"
    """The response that it continues."""
    count: int
    """The number of all items until its end."""
    input: bytes
    """The items of its request as JSON, without the brackets of their list."""
    output: bytes
    """Its own items, the same."""
    fields: bytes
    """Its other fields as a JSON object."""
    used: float = 0.0
    """Monotonic seconds of its last use."""
    is_kept: bool = True

    @property
    def size(self) -> int:
        """Its bytes in memory."""
        return RESPONSE_BYTES + len(self.input) + len(self.output) + len(self.fields)

    def line(self) -> Iterator["KeptResponse"]:
        """Yield the response, the one that it continues, and so on."""
        response: KeptResponse | None = self
        while response is not None:
            yield response
            response = response.previous


class KeptResponses:
    """The responses of all clients; usable from any thread."""

    def __init__(self, max_bytes: int = MAX_BYTES, idle: float = IDLE) -> None:
        self._max_bytes, self._idle = max_bytes, idle
        self._responses: OrderedDict[Key, KeptResponse] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, key: Key) -> tuple[KeptResponse, list[bytes]] | None:
        """Return a response, and the items until its end as JSON without brackets.

        The result is None if it or a response before it is not kept.
        """
        with self._lock:
            self._forget()
            response = self._responses.get(key)
            if response is None or not all(each.is_kept for each in response.line()):
                return None
            self._use(response)
            parts = [part for each in response.line() for part in (each.output, each.input)]
            return response, [part for part in reversed(parts) if part]

    def body(self, key: Key) -> bytes | None:
        """Return a response as its client got it; None if it is not kept."""
        with self._lock:
            self._forget()
            response = self._responses.get(key)
            if response is None:
                return None
            return b'%s,"output":[%s]}' % (response.fields[:-1], response.output)

    def add(self, response: KeptResponse) -> None:
        """Keep a response, and forget those beyond the limits."""
        with self._lock:
            self._drop(response.key)
            self._responses[response.key] = response
            self._bytes += response.size
            self._use(response)
            self._forget()

    def remove(self, key: Key) -> bool:
        """Forget a response; return whether it was kept."""
        with self._lock:
            return self._drop(key)

    def _use(self, response: KeptResponse) -> None:
        for each in response.line():  # the first one last, so that it is forgotten last
            if each.is_kept:
                each.used = time.monotonic()
                self._responses.move_to_end(each.key)

    def _forget(self) -> None:
        latest = time.monotonic() - self._idle
        while self._responses:
            oldest = next(iter(self._responses.values()))
            if self._bytes <= self._max_bytes and oldest.used >= latest:
                break
            self._drop(oldest.key)

    def _drop(self, key: Key) -> bool:
        response = self._responses.pop(key, None)
        if response is None:
            return False
        self._bytes -= response.size
        response.is_kept, response.previous = False, None
        response.input = response.output = response.fields = b""
        return True
