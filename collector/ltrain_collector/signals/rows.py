"""The rows of an OTLP request, and its rejected records."""

from dataclasses import dataclass


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

    @property
    def count(self) -> int:
        return sum(block.rows for block in self.blocks.values())

    @property
    def size(self) -> int:
        return sum(len(block.payload) for block in self.blocks.values())
