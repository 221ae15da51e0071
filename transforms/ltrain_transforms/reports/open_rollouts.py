"""The rollouts that run now, as far as their spans have arrived."""

from collections.abc import Sequence
from dataclasses import dataclass

from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_transforms.tables import typed_rows
from ltrain_transforms.traces import Role, sender_roles

RECENT = 3600
"""Seconds; an older rollout without an end is not running."""
MAX_OPEN = 50
"""Rollouts that are listed: those with failures first, then the oldest."""
RATE = 60
"""Seconds over which sampled tokens are counted."""
# the table, not its view, which would read all of it
OPEN = f"""
SELECT RolloutId AS rollout, max(toString(RunId)) AS run, max(toString(Mode)) AS mode,
    toInt64(max(Wave)) AS wave, max(TaskId) AS task,
    toInt64(uniqExactIf(ParentSpanId, OutTokens > 0)) AS calls,
    toInt64(countIf(StatusCode = 'Error')) AS failed,
    toString(argMax(SpanName, Timestamp + toIntervalNanosecond(Duration))) AS last,
    date_diff('millisecond', min(Timestamp), now64(9)) / 1000 AS seconds,
    date_diff('millisecond', max(Timestamp + toIntervalNanosecond(Duration)), now64(9)) / 1000
        AS quiet
FROM otel.otel_traces
WHERE RolloutId != '' AND IngestedAt > now() - toIntervalSecond({RECENT})
    AND NOT (SpanName = '{attributes.SPAN_PROCESS}')
GROUP BY rollout
HAVING countIf(SpanName = '{attributes.SPAN_DISPATCH}' AND {{runner}}) > 0
    AND countIf(SpanName = '{attributes.SPAN_ROLLOUT}' AND {{runner}}) = 0
ORDER BY failed > 0 DESC, seconds DESC, rollout LIMIT {MAX_OPEN + 1}
"""
SAMPLED = f"""
SELECT toInt64(max(tokens)) AS tokens FROM (
    SELECT ScopeName, sum(OutTokens) AS tokens FROM otel.otel_traces
    WHERE IngestedAt > now() - toIntervalSecond({RATE})
        AND Timestamp + toIntervalNanosecond(Duration) > now64(9) - toIntervalSecond({RATE})
    GROUP BY ScopeName
)
"""
"""Several instrumentations may record a call: that with the most tokens counts."""


@dataclass(frozen=True, slots=True)
class OpenRollout:
    """A rollout that has begun and not ended."""

    rollout: str
    run: str
    mode: str
    wave: int
    task: str
    calls: int
    """Calls of a model whose spans have arrived."""
    failed: int
    """Spans with an error."""
    last: str
    """The name of the span that ended last."""
    seconds: float
    """Seconds since it began."""
    quiet: float
    """Seconds since a span of it ended."""


@dataclass(frozen=True, slots=True)
class OpenRollouts:
    """The rollouts that run now."""

    rollouts: list[OpenRollout]
    has_more: bool
    tokens_per_second: float
    """Tokens that models sampled in the last minute, by their spans."""


def read_open_rollouts(store: Store, trust: Sequence[str] = sender_roles.TRUSTED) -> OpenRollouts:
    """Return the rollouts that a runner has dispatched and not closed within the last hour.

    Args:
        trust: the senders whose spans count as spans of a runner.
    """
    runner = sender_roles.role_condition(Role.RUNNER, trust)
    found = typed_rows(OpenRollout, store.query(OPEN.format(runner=runner)))
    [(tokens,)] = store.query(SAMPLED).rows()
    return OpenRollouts(found[:MAX_OPEN], len(found) > MAX_OPEN, (tokens or 0) / RATE)
