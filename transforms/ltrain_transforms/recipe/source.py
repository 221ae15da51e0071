"""Which executions a recipe reads."""

from datetime import datetime
from typing import Literal

from pydantic import Field, field_validator

from ltrain_transforms.recipe.section import Section


class Source(Section):
    run: str | None = None
    """Only executions of this run."""
    where: str | None = None
    """SQL predicate over the columns of `otel.spans`."""
    since: str | None = None
    """Earliest start of a span, ISO 8601."""
    until: str | None = None
    """Latest start of a span, ISO 8601."""
    execution: Literal["rollout", "session", "trace"] = "rollout"
    """The unit that counts as one execution."""
    idle_timeout: float | None = Field(default=None, gt=0)
    """Idle timeout in seconds for executions without a closing span; unset: they count as finished
    at once."""

    trust: tuple[Literal["ingest", "none", "agent", "import", ""], ...] = ()
    """More senders whose spans may be a runner's or a gateway's: `import` (files), `ingest` (an
    ingest key), `none` (no key), `agent` (a bound key), "" (no sender recorded). `service`,
    `admin` and `local` are always trusted."""

    @field_validator("since", "until")
    @classmethod
    def _is_time(cls, value: str | None) -> str | None:
        try:
            datetime.fromisoformat(value or "2026-01-31")
        except ValueError as error:
            raise ValueError(
                f"'{value}' is no ISO 8601 time, such as '2026-01-31' or '2026-01-31T12:00:00Z'."
            ) from error
        return value
