"""What is left out of comparison and of rows."""

from typing import Literal

from pydantic import Field

from ltrain_transforms.recipe.section import Section


class FailedCounts(Section):
    reward: float = 0.0
    """The outcome of an agent that failed or ran out of time."""


class Filter(Section):
    failed: FailedCounts | Literal["drop"] = FailedCounts()
    """Agent errors and timeouts: counted with a reward, or dropped."""
    max_tokens: int = Field(default=4096, ge=1)
    """Longer rows are dropped by name."""
    groups: int | None = Field(default=None, ge=1)
    """Train this many groups with the widest outcome."""
