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
    """Longer rows are dropped by name; a row is as long as its last call's prompt and response."""
    too_long: Literal["call", "row"] = "call"
    """What goes of a row that is longer: the calls that do not fit, or all of its calls."""
    allow: tuple[
        Literal[
            "incomplete",
            "redacted",
            "truncated",
            "undelivered",
            "constrained",
            "no_version",
        ],
        ...,
    ] = ()
    """Reasons of drops that this recipe does not apply: what they name is trained all the same."""
    max_groups: int | None = Field(default=None, ge=1)
    """Train this many groups with the widest outcome."""
