"""What an OTLP request becomes: rows for tables, and what of it has none."""

from dataclasses import dataclass, field

from ltrain_collector.ingest.refusals import TooLarge

REPEATED = 64 << 20
"""Bytes that the rows of one request may repeat of its resources and scopes: a resource of 32 MiB
with a million spans would else be 32 TiB."""

AHEAD = 366 * 86_400 * 10**9
"""Nanoseconds that a record may be after now: a clock that is wrong by years makes a partition for
each of its months."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one table, in RowBinary."""

    payload: bytes
    rows: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one request; `rejected` records have no row, for the reason given."""

    blocks: dict[str, Block]
    """By table; none is empty."""
    rejected: int = 0
    reason: str = ""

    @property
    def count(self) -> int:
        return sum(block.rows for block in self.blocks.values())

    @property
    def size(self) -> int:
        return sum(len(block.payload) for block in self.blocks.values())


@dataclass(slots=True)
class Rejected:
    """Records that were refused, and why."""

    count: int = 0
    reasons: set[str] = field(default_factory=set)

    def add(self, reason: str) -> None:
        self.count += 1
        self.reasons.add(reason)

    @property
    def reason(self) -> str:
        return "; ".join(sorted(self.reasons))


class Repeats:
    """Counts what rows repeat, before it is repeated."""

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, head: bytes, rows: int) -> None:
        """Count `rows` that all begin with `head`.

        Raises:
            TooLarge: when all of them together repeat too much.
        """
        self._bytes += len(head) * rows
        if self._bytes > REPEATED:
            raise TooLarge(
                f"The rows of this request repeat more than {REPEATED >> 20} MiB of resource and "
                "scope attributes. Send less at a time, or shorter attributes."
            )
