"""Collects the rows of one request, whatever its signal, and what of it has none."""

import time
from collections import defaultdict
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ltrain_collector import claims
from ltrain_collector.grants import Grant
from ltrain_collector.ingest.refusals import TooLarge
from ltrain_collector.ingest.rows import Block, Rows

REPEATED = 64 << 20
"""Bytes that the rows of one request may repeat of its resources and scopes: a resource of 32 MiB
with a million spans would else be 32 TiB."""

AHEAD = 366 * 86_400 * 10**9
"""Nanoseconds that a record may be after now: a clock that is wrong by years makes a partition for
each of its months."""


class Writer:
    """The rows of one request; `grant` is what its client may claim."""

    def __init__(self, grant: Grant | None) -> None:
        self.latest = time.time_ns() + AHEAD
        """Nanoseconds since 1970 that a record must be before."""
        self._grant = grant
        self._parts: defaultdict[str, list[bytes]] = defaultdict(list)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._rejected = 0
        self._reasons: set[str] = set()
        self._repeated = 0

    def repeats(self, head: bytes, rows: int) -> None:
        """Count `rows` that all hold `head`, before they are written.

        Raises:
            TooLarge: when all of them together repeat too much.
        """
        self._repeated += len(head) * rows
        if self._repeated > REPEATED:
            raise TooLarge(
                f"The rows of this request repeat more than {REPEATED >> 20} MiB of resource and "
                "scope attributes. Send less at a time, or shorter attributes."
            )

    def ahead(self, time_unix_nano: int) -> str:
        """Say what is wrong with a record of this time; '' when nothing."""
        return "time_unix_nano is more than a year ahead" if time_unix_nano >= self.latest else ""

    def claimed(self, resource: Resource, scope: InstrumentationScope, record: Any) -> str:
        """Say what `record` claims that its client may not; '' when nothing."""
        return claims.fault(self._grant, resource, scope, record)

    def takes(self, record: Any, fault: str) -> bool:
        """Let `record` carry its client's identity, or count it as rejected for its `fault`."""
        if fault:
            self._rejected += 1
            self._reasons.add(fault)
        else:
            claims.stamp(self._grant, record)
        return not fault

    def add(self, table: str, fields: tuple[bytes, ...]) -> None:
        """Append a row in RowBinary."""
        self._parts[table] += fields
        self._counts[table] += 1

    def rows(self) -> Rows:
        """Give what was written and what was rejected."""
        blocks = {
            table: Block(b"".join(parts), self._counts[table])
            for table, parts in self._parts.items()
        }
        return Rows(blocks, self._rejected, "; ".join(sorted(self._reasons)))
