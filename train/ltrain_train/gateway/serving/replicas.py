"""The replicas of a vLLM: engines with the same weights, of which each answers some of the calls.

vLLM runs them behind one server (`--data-parallel-size`), and its admin routes reach all of them. A
header names the replica that answers a call.
"""

from collections.abc import MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import aiohttp

from ltrain_instrument.tokens import Operation
from ltrain_train.gateway.serving.upstream import Upstream

HEADER = "x-data-parallel-rank"
"""vLLM's header with the number of a replica."""
MARGIN = 4
"""Calls in flight that a replica may have beyond twice those of the least busy one, before an
attempt moves: its prefix cache saves less than the wait costs."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica as the server of a call."""

    upstream: Upstream
    number: int

    def post(
        self, operation: Operation, body: bytes
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Post a call; leaving the context before its end aborts the generation."""
        return self.upstream.post(operation, body, {HEADER: str(self.number)})


class Replicas:
    """Chooses the replica of each call, and counts the calls in flight of each replica.

    An attempt stays with the replica whose prefix cache has its earlier calls, until that one is
    much busier than another.
    """

    def __init__(self, upstream: Upstream, count: int) -> None:
        self._upstream = upstream
        self._calls = [0] * count

    def enter(self, chosen: MutableMapping[str, int], policy: str) -> Replica | None:
        """Return the replica that answers a call; None if there is only one.

        Args:
            chosen: the replica of the attempt's last call of each policy, which is updated.
            policy: the policy that is called.
        """
        if len(self._calls) == 1:
            return None
        least = min(range(len(self._calls)), key=self._calls.__getitem__)
        number = chosen.get(policy, least)
        if self._calls[number] > 2 * self._calls[least] + MARGIN:
            number = least
        chosen[policy] = number
        self._calls[number] += 1
        return Replica(self._upstream, number)

    def leave(self, replica: Replica | None) -> None:
        """Count a call of the replica as ended."""
        if replica is not None:
            self._calls[replica.number] -= 1
