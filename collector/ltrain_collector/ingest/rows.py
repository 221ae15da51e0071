"""What an OTLP request becomes: rows for tables, and what of it has none."""

from dataclasses import dataclass


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
