"""Whether an outage excuses how an attempt ended: the gateway's counts decide, not the agent."""

from ltrain_train.gateway.client import CallCounts
from ltrain_train.rollout.attempt import Attempt, Ending, Outcome

EXCUSED = 1.0
"""Seconds of waiting for the policy server that excuse an attempt past its deadline."""


def verdict(attempt: Attempt, ending: Ending, calls: CallCounts) -> Ending:
    """Return the attempt's ending; `infra` where an outage may have made it what it is."""
    if ending.outcome not in (Outcome.OK, Outcome.ERROR, Outcome.TIMEOUT):
        return ending
    outage = _outage(attempt, ending, calls)
    if not outage:
        return ending
    return Ending(Outcome.INFRA, f"{outage}: {ending.reason}" if ending.reason else outage)


def _outage(attempt: Attempt, ending: Ending, calls: CallCounts) -> str:
    if calls.since > attempt.started / 1e9:
        return "the gateway was started again meanwhile"
    if calls.failures:
        return f"an outage left {calls.failures} calls unanswered"
    if ending.outcome is Outcome.TIMEOUT and calls.away_seconds >= EXCUSED:
        return f"its calls waited {calls.away_seconds:.1f} s for the policy server"
    return ""
