"""Closed attempts survive the gateway that closed them."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ltrain_collector.access import AttemptKey
from ltrain_instrument.identity import Identity
from ltrain_train.gateway.attempts import AttemptCalls, AttemptRegistry
from ltrain_train.gateway.closed_attempts import ClosedAttempts
from ltrain_train.gateway.errors import Refused


def claims(rollout: str, seconds: float = 60.0) -> AttemptKey:
    return AttemptKey(
        identity=Identity(rollout=rollout, attempt=1),
        policy="policy",
        sampling={},
        expires=time.time() + seconds,
    )


def close(registry: AttemptRegistry, key: AttemptKey, calls: int) -> dict[str, float]:
    attempt = registry.find(key)
    attempt.llm_calls += calls
    asyncio.run(attempt.close())
    return asyncio.run(registry.record_close(attempt, 5.0))


def test_a_closed_attempt_stays_closed_with_its_counts(tmp_path: Path) -> None:
    path = tmp_path / "gateway" / "closed.jsonl"
    answer = close(AttemptRegistry(ClosedAttempts(path)), claims("a"), calls=3)
    restarted = AttemptRegistry(ClosedAttempts(path))
    with pytest.raises(Refused, match="closed"):
        restarted.require_open(claims("a"))
    assert close(restarted, claims("a"), calls=0) == answer
    assert (answer["llm_calls"], answer["since"]) == (3, 5.0)
    restarted.require_open(claims("b"))


def test_a_half_written_line_hides_no_other(tmp_path: Path) -> None:
    path = tmp_path / "closed.jsonl"
    path.write_text('{"rollout": "torn", "att')
    close(AttemptRegistry(ClosedAttempts(path)), claims("a"), calls=1)
    assert [each.rollout for each in ClosedAttempts(path).read()] == ["a"]


def test_an_expired_attempt_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "closed.jsonl"
    close(AttemptRegistry(ClosedAttempts(path)), claims("a", seconds=-1.0), calls=1)
    assert list(ClosedAttempts(path).read()) == []


def test_calls_at_the_same_time_count_once_and_a_call_in_flight_counts(
    stage: Any, vllm: Any
) -> None:
    vllm.delays = (0.8, 0.0)
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(stage.ask, f"w{number}") for number in range(3)]
        time.sleep(0.4)
        in_flight = stage.client.call_seconds("policy")["abc.1"]
        assert [call.result().status_code for call in calls] == [200] * 3
    counts = stage.client.close_attempt(stage.identity, stage.key())
    assert 0.1 < in_flight < counts.call_seconds
    assert 0.8 <= counts.call_seconds < 1.6, "not the sum of the three calls"
    assert stage.client.call_seconds("policy") == {}


def test_the_agents_time_between_two_calls_does_not_count(stage: Any) -> None:
    stage.ask("w1")
    seconds = stage.client.call_seconds("policy")["abc.1"]
    time.sleep(0.5)
    assert stage.client.call_seconds("policy")["abc.1"] == seconds


def test_an_agent_that_reads_an_answer_slowly_spends_its_own_time() -> None:
    attempt = AttemptCalls(Identity(rollout="a", attempt=1))
    with attempt.count_call():
        with attempt.count_sending():
            time.sleep(0.3)
        assert attempt.call_seconds < 0.2


def test_an_attempt_has_as_many_answered_calls_as_its_key_allows(stage: Any, vllm: Any) -> None:
    key = stage.key(max_calls=2)
    assert stage.ask("wrong", key=key).status_code == 400, "an error is not an answer"
    assert [stage.ask("w1", key=key).status_code for _ in range(3)] == [200, 200, 400]
    message = stage.ask("w1", key=key).json()["error"]["message"]
    assert message.startswith("The attempt has had 2 answered calls, the limit of rollout.max_cal")
    assert len(vllm.requests) == 3
