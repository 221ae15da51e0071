"""Retries are logged and have a time limit."""

import logging

import pytest

from ltrain_collector.errors import NO_CODE, QueryFailed, StoreUnreachable
from ltrain_train.gateway import GatewayRefused, GatewayUnreachable, PolicyServerAway
from ltrain_train.runs import retry
from ltrain_train.runs.retry import retry_load, retry_store


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "RETRY_PAUSE", 0.01)


@pytest.mark.parametrize(
    "away", [GatewayUnreachable("No gateway"), PolicyServerAway("vLLM died")], ids=repr
)
def test_a_publication_waits_for_gateway_and_policy_server(
    away: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    left = [away, away]

    def publish() -> float:
        if left:
            raise left.pop()
        return 1.5

    with caplog.at_level(logging.WARNING):
        assert retry_load(publish) == 1.5
    [message] = caplog.messages
    assert message == f"ltrain: waiting for the gateway, at most 1200 s: {away}"


def test_a_wait_has_a_time_limit(caplog: pytest.LogCaptureFixture) -> None:
    def publish() -> None:
        raise PolicyServerAway("vLLM died.")

    ended = r"vLLM died\. The gateway was waited for 0 s; the same command continues\."
    with pytest.raises(PolicyServerAway, match=ended):
        retry_load(publish, timeout=0.05)
    assert len(caplog.messages) == 1


def test_a_refusal_is_not_retried() -> None:
    calls = []

    def publish() -> None:
        calls.append(1)
        raise GatewayRefused("no such version")

    with pytest.raises(GatewayRefused):
        retry_load(publish)
    assert calls == [1]


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (StoreUnreachable("away"), 3),
        (QueryFailed("cut", NO_CODE), 3),
        (QueryFailed("Cannot create pipe", 298), 3),
        (QueryFailed("Cannot open file, errno: 24, strerror: Too many open files", 76), 3),
        (QueryFailed("bad", 60), 1),
    ],
)
def test_only_a_store_that_is_away_or_lacks_something_is_retried(
    error: Exception, times: int
) -> None:
    calls: list[int] = []

    def request() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise error
        return len(calls)

    if times == 1:
        with pytest.raises(QueryFailed):
            retry_store(request)
    else:
        assert retry_store(request) == 3
    assert len(calls) == times
