"""The filter of listed rollouts and traces, as SQL conditions on the spans of a store."""

from dataclasses import dataclass
from datetime import datetime

from ltrain_collector.access import TRUSTED_SENDERS
from ltrain_collector.admin.counted_scores import EVALUATED_UNIT_SQL, counted_scores
from ltrain_collector.errors import BadTime
from ltrain_collector.promoted_columns import LLM_SQL, MODE_SQL
from ltrain_instrument import attributes

LLM = f"(ScopeName != '{attributes.SCOPE_RUNNER}' AND {LLM_SQL})"
"""A model's call of the agent; those of a runner are of its judges."""
CONTAINS_TEXT = (
    "arrayExists(value -> positionCaseInsensitiveUTF8(value, {text:String}) > 0, "
    "mapValues(SpanAttributes))"
)
IS_EVALUATION = f"SpanName = '{attributes.SPAN_EVALUATION}'"
EVALUATION_NAME = "if(EvaluationName = '', 'reward', toString(EvaluationName))"
BY_PERSON = (
    f"{IS_EVALUATION} AND ScopeName = '{attributes.SCOPE_PERSON}' "
    f"AND Sender IN ({', '.join(repr(str(sender)) for sender in TRUSTED_SENDERS)})"
)
"""Feedback by hand."""
_BY_HAND = counted_scores(
    "source = 'person' AND name = {unrated:String}", f"{EVALUATED_UNIT_SQL} AS unit"
)
RATED = f"(SELECT unit FROM ({_BY_HAND}))"
"""Rollouts and traces with a score of a name by hand that counts."""


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """The filter of the listed rollouts and traces."""

    run: str | None = None
    mode: str | None = None
    since: str | None = None
    """ISO 8601."""
    errors: bool = False
    """Only those with a failed span."""
    without_calls: bool = False
    """Also those without an LLM call."""
    wave: int | None = None
    task: str | None = None
    text: str | None = None
    """Only those with a span whose attributes contain this text, in any case of letters."""
    unrated: str | None = None
    """Only those without feedback by hand of this name."""

    def condition(self) -> tuple[str, dict[str, object]]:
        """Return the SQL condition on spans, and its parameters.

        Raises:
            BadTime: `since` is not a time.
        """
        sql, params = [f"NOT {IS_EVALUATION}"], dict[str, object]()
        if self.run is not None:
            sql.append("RunId = {run:String}")
            params["run"] = self.run
        if self.mode is not None:
            sql.append(f"{MODE_SQL} = {{mode:String}}")
            params["mode"] = self.mode
        if self.since is not None:
            try:
                since = datetime.fromisoformat(self.since)
            except ValueError as error:
                raise BadTime(
                    f"'{self.since}' is no ISO 8601 time, such as 2026-01-31 or "
                    "2026-01-31T12:00:00Z."
                ) from error
            sql.append("Timestamp >= parseDateTime64BestEffort({since:String}, 9)")
            params["since"] = since.isoformat()
        if self.wave is not None:
            sql.append("Wave = {wave:UInt32}")
            params["wave"] = self.wave
        if self.task is not None:
            sql.append("TaskId = {task:String}")
            params["task"] = self.task
        if self.text is not None:
            params["text"] = self.text
        if self.unrated is not None:
            params["unrated"] = self.unrated
        return " AND ".join(sql), params

    def having(self) -> str:
        """Return the SQL condition on the spans of one rollout or trace."""
        parts = ["true"]
        if self.errors:
            parts.append("countIf(StatusCode = 'Error') > 0")
        if not self.without_calls:
            parts.append(f"countIf({LLM}) > 0")
        if self.text is not None:
            parts.append(f"countIf({CONTAINS_TEXT}) > 0")
        if self.unrated is not None:
            parts.append(f"countIf(RolloutId IN {RATED} OR TraceId IN {RATED}) = 0")
        return " AND ".join(parts)


@dataclass(frozen=True, slots=True)
class Position:
    """The place of a rollout or trace in the list."""

    latest: int
    """When its last span began, in nanoseconds."""
    id: str
