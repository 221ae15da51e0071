"""The rows and the rejected records of one request of any signal, and what collects them."""

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from ltrain_collector.access import IngestPolicy
from ltrain_collector.errors import TooLarge

MAX_REPEATED_BYTES = 64 << 20
"""Bytes of resources and scopes that the rows of one request can repeat: otherwise a resource of
32 MiB with a million spans would become 32 TiB."""

MAX_AHEAD_NS = 366 * 86_400 * 10**9
"""Nanoseconds that a record can be ahead of now: clocks that are wrong by years would create many
monthly partitions."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one table in RowBinary."""

    payload: bytes
    rows: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one request; `rejected` is the number of records without a row."""

    blocks: dict[str, Block]
    """Non-empty blocks by table."""
    rejected: int = 0
    reason: str = ""
    request: bytes = b""
    """The records with rows as a serialized request, if they are forwarded."""
    returned: bool = False
    """Whether records were left out because this collector had forwarded them."""

    @property
    def count(self) -> int:
        return sum(block.rows for block in self.blocks.values())

    @property
    def size(self) -> int:
        return sum(len(block.payload) for block in self.blocks.values())


class RowWriter:
    """The rows of one request; `policy` is what its key allows."""

    def __init__(self, policy: IngestPolicy) -> None:
        self.policy = policy
        self.latest = time.time_ns() + MAX_AHEAD_NS
        """Unix nanoseconds that the times of records must be below."""
        self._parts: defaultdict[str, list[bytes]] = defaultdict(list)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._rejected = 0
        self._reasons: set[str] = set()
        self._repeated = 0

    def count_repeated(self, head: bytes, rows: int) -> None:
        """Count the bytes of `head` in `rows` rows before they are written."""
        self._repeated += len(head) * rows
        if self._repeated > MAX_REPEATED_BYTES:
            raise TooLarge(
                f"The rows of this request repeat more than {MAX_REPEATED_BYTES >> 20} MiB of "
                "resource and scope attributes. Send less at a time, or shorter attributes."
            )

    def time_error(self, time_unix_nano: int) -> str:
        """Return why a record of this time is rejected, or ''."""
        return "time_unix_nano is more than a year ahead" if time_unix_nano >= self.latest else ""

    def accept(self, record: Any, error: str) -> bool:
        """Set the key's identity on a valid record, or count and clear it; return validity."""
        if error:
            self._rejected += 1
            self._reasons.add(error)
            record.Clear()
        else:
            self.policy.attach_identity(record)
        return not error

    def add(self, table: str, fields: tuple[bytes, ...]) -> None:
        """Append one row in RowBinary."""
        self._parts[table] += fields
        self._counts[table] += 1

    def rows(self) -> Rows:
        """Return the written rows and the number of rejected records with the reasons."""
        blocks = {
            table: Block(b"".join(parts), self._counts[table])
            for table, parts in self._parts.items()
        }
        return Rows(blocks, self._rejected, "; ".join(sorted(self._reasons)))
