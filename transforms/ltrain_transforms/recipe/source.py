"""Which executions a recipe reads."""

from typing import Literal

from pydantic import Field

from ltrain_transforms.recipe.section import Section


class Source(Section):
    run: str | None = None
    """Executions of this run."""
    where: str | None = None
    """SQL over the columns of `otel.spans`."""
    since: str | None = None
    """ISO 8601; the earliest start."""
    until: str | None = None
    """ISO 8601; the latest start."""
    execution: Literal["rollout", "session", "trace"] = "rollout"
    """What counts as one execution."""
    idle: float | None = Field(default=None, gt=0)
    """Seconds without a span after which traffic that nobody closes is over; unset: at once."""
