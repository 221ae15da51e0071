"""The end of a rollout, as its runner knows it; journal, report and dataset start from it."""

from pydantic import BaseModel, ConfigDict


class EndedRollout(BaseModel):
    """The last attempt at a rollout, which has ended."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)

    rollout: str
    attempt: int
    task: str
    wave: int
    """The wave that dispatched it first."""
    outcome: str
    reason: str = ""
    """Why the outcome is not `ok`; '' if it is."""
    evaluations: dict[str, float] = {}
    """The reward function's values by name; empty if it was not called."""
    spans: int = 0
    """Spans that the runner and the gateway ended for it, without their reports."""
