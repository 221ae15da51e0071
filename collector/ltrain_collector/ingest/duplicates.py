"""Detect duplicate requests: a client that got no response sends the same bytes again."""

from collections import OrderedDict

MAX_REQUESTS = 4096
"""Number of requests that are remembered: a client sends again within seconds."""


class RecentRequests:
    """The most recently stored requests, by a hash of their bytes."""

    def __init__(self, max_requests: int = MAX_REQUESTS) -> None:
        self._max_requests = max_requests
        self._stored: OrderedDict[int, None] = OrderedDict()

    def add(self, digest: int) -> bool:
        """Remember a stored request, and return whether the same bytes were stored before."""
        before = digest in self._stored
        self._stored[digest] = None
        self._stored.move_to_end(digest)
        if len(self._stored) > self._max_requests:
            self._stored.popitem(last=False)
        return before
