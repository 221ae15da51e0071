"""Closed attempts survive the gateway that closed them."""

import asyncio
import time
from pathlib import Path

import pytest

from ltrain_collector.access import AttemptKey
from ltrain_instrument.identity import Identity
from ltrain_train.gateway.attempts import AttemptRegistry
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
