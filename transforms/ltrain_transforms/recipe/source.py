"""Which executions a recipe reads."""

from datetime import datetime
from typing import Literal

from pydantic import Field, field_validator

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
    idle_timeout: float | None = Field(default=None, gt=0)
    """Seconds without a span after which traffic that nobody closes is over; unset: at once."""

    trust: tuple[Literal["ingest", "none", "agent", "import", ""], ...] = ()
    """Further senders whose spans may be a runner's or a gateway's: `import` (files), `ingest` (an
    ingest key), `none` (no key), `agent` (a bound key), "" (nothing recorded). `service`, `admin`
    and `local` are trusted always."""

    @field_validator("since", "until")
    @classmethod
    def _moment(cls, given: str | None) -> str | None:
        try:
            datetime.fromisoformat(given or "2026-01-31")
        except ValueError as error:
            raise ValueError(
                f"'{given}' is no time in ISO 8601, such as '2026-01-31' or '2026-01-31T12:00:00Z'."
            ) from error
        return given
