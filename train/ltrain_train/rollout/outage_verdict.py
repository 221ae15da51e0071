"""Decides by the gateway's counts, not by the agent, whether an outage excuses an attempt."""

from ltrain_train.gateway import CallCounts
from ltrain_train.workers import Attempt, AttemptResult, Outcome

EXCUSED_WAIT = 1.0
"""Seconds of waiting for the policy server that excuse a timeout."""


def apply_outage(attempt: Attempt, result: AttemptResult, calls: CallCounts) -> AttemptResult:
    """Return the attempt's result, changed to `infra` if an outage may have caused it."""
    if result.outcome not in (Outcome.OK, Outcome.ERROR, Outcome.TIMEOUT):
        return result
    reason = _outage_reason(attempt, result, calls)
    if not reason:
        return result
    return AttemptResult(Outcome.INFRA, f"{reason}: {result.reason}" if result.reason else reason)


def _outage_reason(attempt: Attempt, result: AttemptResult, calls: CallCounts) -> str:
    if calls.since > attempt.started / 1e9:
        return "the gateway was started again meanwhile"
    if calls.failures:
        return f"an outage left {calls.failures} calls unanswered"
    if result.outcome is Outcome.TIMEOUT and calls.away_seconds >= EXCUSED_WAIT:
        return f"its calls waited {calls.away_seconds:.1f} s for the policy server"
    return ""
