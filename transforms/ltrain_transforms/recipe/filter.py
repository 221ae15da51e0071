"""Which executions are compared, and which calls become training rows."""

from typing import Literal

from pydantic import Field

from ltrain_transforms.recipe.section import Section


class FailedCounts(Section):
    reward: float = 0.0
    """The outcome reward of an attempt with an error or a timeout."""


class Filter(Section):
    failed: FailedCounts | Literal["drop"] = FailedCounts()
    """Attempts with an error or a timeout: counted with this reward, or dropped."""
    max_tokens: int = Field(default=4096, ge=1)
    """Longer rows are dropped as `too_long`; a row's length is that of its last call's prompt and
    response."""
    too_long: Literal["call", "row"] = "call"
    """What is dropped from a longer row: the calls that do not fit, or all of its calls."""
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
    """Reasons of drops that this recipe ignores: such executions and calls are trained."""
    max_groups: int | None = Field(default=None, ge=1)
    """Train only this many groups, those whose outcomes differ most."""
