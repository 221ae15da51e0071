"""Which requests were stored before: sent again, by a client that did not hear of it."""

from collections import OrderedDict

KNOWN = 4096
"""Requests that are remembered: what is sent again comes within seconds."""


class Repeated:
    """The latest requests that were stored, by a hash of their bytes."""

    def __init__(self, known: int = KNOWN) -> None:
        self._known = known
        self._stored: OrderedDict[int, None] = OrderedDict()

    def add(self, digest: int) -> bool:
        """Remember a stored request; say whether the same bytes were stored before."""
        before = digest in self._stored
        self._stored[digest] = None
        self._stored.move_to_end(digest)
        if len(self._stored) > self._known:
            self._stored.popitem(last=False)
        return before
