"""Which attempts are excused: the gateway's counts decide, not what the agent raises."""

import time
from dataclasses import replace
from typing import Any

import pytest

from ltrain_instrument.identity import Identity
from ltrain_train.gateway import CallCounts
from ltrain_train.rollout.attempt_limits import TimeLimits
from ltrain_train.rollout.attempts import apply_outage
from ltrain_train.workers import Attempt, AttemptResult, Endpoint, Outcome
from ltrain_train.workers.attempt import count_oom_kills, result_of_death

OK, ERROR, TIMEOUT = (
    AttemptResult(each, "why") for each in (Outcome.OK, Outcome.ERROR, Outcome.TIMEOUT)
)
STARTED = 1_000.0


def attempt(*, isolated: bool = False, kills: int = 5) -> Attempt:
    return Attempt(
        identity=Identity(run="r", rollout="abc", attempt=1, mode="train"),
        task={"id": "a"},
        endpoint=Endpoint("http://gateway", "key", "policy"),
        traceparent="",
        started=int(STARTED * 1e9),
        timeout=60,
        isolated=isolated,
        oom_kills=kills,
    )


SECONDS = 10.0


def counts(failures: int = 0, seconds: float = 0.0, **more: Any) -> CallCounts:
    return CallCounts(llm_calls=1, spans=1, failures=failures, call_seconds=seconds, **more)


@pytest.mark.parametrize(
    ("ending", "calls", "outcome", "reason"),
    [
        (OK, counts(), "ok", "why"),
        (ERROR, counts(), "error", "why"),
        (TIMEOUT, counts(), "timeout", "why"),
        (OK, counts(failures=2), "infra", "an outage left 2 calls unanswered: why"),
        (ERROR, counts(failures=1), "infra", "an outage left 1 call unanswered: why"),
        (ERROR, counts(seconds=30.0), "error", "why"),
        (OK, counts(seconds=30.0), "ok", "why"),
        (TIMEOUT, counts(seconds=30.0), "timeout", "why"),
        (ERROR, counts(uptime=SECONDS + 1), "error", "why"),
        (
            ERROR,
            counts(uptime=SECONDS - 1),
            "infra",
            "the gateway was started again meanwhile: why",
        ),
        (OK, counts(uptime=SECONDS - 1), "infra", "the gateway was started again meanwhile: why"),
        (
            ERROR,
            counts(given_up=2),
            "infra",
            "it gave up 2 model calls before the answer: the model",
        ),
        (OK, counts(given_up=1), "infra", "it gave up 1 model call before the answer: the model s"),
        (TIMEOUT, counts(given_up=1), "timeout", "why"),
        (AttemptResult(Outcome.INFRA, "ours"), counts(failures=1), "infra", "ours"),
    ],
)
def test_the_gateways_counts_decide_on_an_outage(
    ending: AttemptResult, calls: CallCounts, outcome: str, reason: str
) -> None:
    result = apply_outage(ending, calls, SECONDS)
    assert result.outcome.value == outcome
    assert result.reason.startswith(reason) and result.reason.endswith(ending.reason)


@pytest.mark.parametrize(
    ("elapsed", "call_seconds", "is_current", "outcome"),
    [
        (61.0, 0.0, True, "timeout"),
        (61.0, 2.0, True, None),
        (90.0, 29.0, True, "timeout"),
        (90.0, 29.0, False, None),  # the gateway does not answer: perhaps its calls took longer
        (199.0, 190.0, True, None),
        (201.0, 190.0, True, "infra"),
        (201.0, 0.0, False, "infra"),
    ],
)
def test_the_agents_own_seconds_end_it_as_a_timeout_and_all_seconds_as_infra(
    elapsed: float, call_seconds: float, is_current: bool, outcome: str | None
) -> None:
    limits = TimeLimits(wall=200.0)
    late = replace(attempt(), began=time.monotonic() - elapsed)
    limits.call_seconds = {late.id: call_seconds}
    limits.end(late, is_current=is_current)
    assert (late.id in limits.overdue) == (outcome is not None)
    if outcome is not None:
        assert limits.excuse(late, TIMEOUT).outcome.value == outcome
        assert limits.excuse(late, OK) == OK, "the agent returned before it was ended"


@pytest.mark.parametrize(
    ("isolated", "shared", "starved", "outcome"),
    [
        (False, False, False, "error"),
        (False, True, False, "infra"),
        (False, False, True, "infra"),
        (True, False, True, "error"),
        (True, False, False, "error"),
    ],
)
def test_a_death_is_excused_once_if_another_may_have_caused_it(
    monkeypatch: pytest.MonkeyPatch, isolated: bool, shared: bool, starved: bool, outcome: str
) -> None:
    monkeypatch.setattr("ltrain_train.workers.attempt.count_oom_kills", lambda: 5 + starved)
    ending = result_of_death(attempt(isolated=isolated), "its worker died", shared=shared)
    assert (ending.outcome.value, ending.died) == (outcome, outcome == "infra")


def test_the_kernels_count_of_oom_kills_is_read() -> None:
    assert count_oom_kills() >= 0
