"""Closed attempts survive the gateway that closed them."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from ltrain_collector.access import AttemptKey
from ltrain_instrument.clock import Deadline
from ltrain_instrument.identity import Identity
from ltrain_train.gateway import exchange
from ltrain_train.gateway.attempts import AttemptCalls, AttemptRegistry
from ltrain_train.gateway.closed_attempts import ClosedAttempts
from ltrain_train.gateway.errors import Refused


def claims(rollout: str, seconds: float = 60.0) -> AttemptKey:
    return AttemptKey(
        identity=Identity(rollout=rollout, attempt=1),
        policy="policy",
        sampling={},
        expires=Deadline.after(seconds),
    )


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waited for 0.4 s was left because the server is slow."""
    monkeypatch.setattr(exchange, "PATIENCE", 0.4)


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
    assert (answer["llm_calls"], answer["uptime"]) == (3, 5.0)
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


@pytest.mark.parametrize("step", [86_400.0, -86_400.0, -3_600.0])
def test_a_step_of_the_clock_opens_no_closed_attempt_and_ends_no_open_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    path = tmp_path / "closed.jsonl"
    registry = AttemptRegistry(ClosedAttempts(path))
    close(registry, claims("a"), calls=3)
    pinned = registry.find(replace(claims("b"), pin_version=True))
    pinned.versions["policy"] = 7
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + step)
    with pytest.raises(Refused, match="closed"):
        AttemptRegistry(ClosedAttempts(path)).require_open(claims("a"))
    assert registry.pinned() == {("policy", 7)}


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


def test_an_attempt_has_as_many_sampled_tokens_as_its_key_allows(stage: Any, vllm: Any) -> None:
    key = stage.key(max_tokens=3)
    assert [stage.ask("w1 w2", key=key).status_code for _ in range(3)] == [200, 200, 400]
    message = stage.ask("w1", key=key).json()["error"]["message"]
    assert message.startswith("The policy has sampled 4 tokens for the attempt, and the limit is 3")
    assert len(vllm.requests) == 2


def chat(stage: Any, content: str, *, stream: bool = False) -> dict[str, Any]:
    """Return a chat request of the attempt, as arguments of httpx."""
    body = {"messages": [{"role": "user", "content": content}], "model": "policy", "stream": stream}
    path = f"/rollout/{stage.identity.rollout}/attempt/{stage.identity.attempt}"
    return {
        "method": "POST",
        "url": f"{path}/v1/chat/completions",
        "json": body,
        "headers": {"authorization": f"Bearer {stage.key()}"},
    }


def give_up(stage: Any, content: str) -> None:
    """Ask, and leave at a timeout of the client; return when the gateway has noticed."""
    spans = len(stage.spans())
    with pytest.raises(httpx.ReadTimeout):
        stage.http.request(**chat(stage, content), timeout=0.5)
    stage.wait_spans(spans + 1)


def closed(stage: Any) -> Any:
    return stage.client.close_attempt(stage.identity, stage.key())


@pytest.mark.usefixtures("patience")
def test_a_call_that_the_client_left_before_its_answer_is_given_up(stage: Any) -> None:
    stage.ask("w1")
    give_up(stage, "stuck")
    give_up(stage, "stuck")
    assert closed(stage).given_up == 2


def test_a_call_that_the_client_left_at_once_is_not_given_up(stage: Any) -> None:
    give_up(stage, "stuck")
    assert closed(stage).given_up == 0


@pytest.mark.usefixtures("patience")
def test_a_later_answer_makes_up_for_calls_that_were_given_up(stage: Any) -> None:
    give_up(stage, "stuck")
    stage.ask("w1")
    assert closed(stage).given_up == 0


@pytest.mark.usefixtures("patience")
def test_a_call_beside_an_answered_one_is_not_given_up(stage: Any) -> None:
    with ThreadPoolExecutor(1) as pool:  # as an agent that takes the first of two answers
        left = pool.submit(give_up, stage, "stuck")
        time.sleep(0.2)
        assert stage.ask("w1").status_code == 200
        left.result()
    assert closed(stage).given_up == 0


@pytest.mark.usefixtures("patience")
def test_a_stream_that_the_agent_has_begun_to_read_is_not_given_up(stage: Any) -> None:
    with stage.http.stream(**chat(stage, "slow w1 w2 w3", stream=True)) as response:
        next(response.iter_raw())
    stage.wait_spans(1)
    assert closed(stage).given_up == 0


def in_flight(stage: Any, vllm: Any, pool: ThreadPoolExecutor, content: str) -> Any:
    """Start a call, and return when the policy server has it."""
    call = pool.submit(lambda: stage.http.request(**chat(stage, content)))
    until = time.monotonic() + 30
    while not vllm.requests:
        assert time.monotonic() < until
        time.sleep(0.01)
    return call


def test_a_close_waits_for_no_policy_server(stage: Any, vllm: Any) -> None:
    vllm.health_delay = 4.0
    with ThreadPoolExecutor(1) as pool:
        call = in_flight(stage, vllm, pool, "stuck")
        began = time.monotonic()
        assert closed(stage).failures == 0
        assert time.monotonic() - began < 3.0
        assert call.result().status_code == 403


def test_a_call_that_a_close_cancels_in_an_outage_is_left_unanswered(stage: Any, vllm: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        call = in_flight(stage, vllm, pool, "stuck")
        vllm.sick = True
        stage.watch()
        until = time.monotonic() + 30
        while stage.publication.upstream.was_healthy:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert closed(stage).failures == 1
        assert call.result().status_code == 403


def test_a_call_that_its_agent_leaves_in_an_outage_is_left_unanswered(
    stage: Any, vllm: Any
) -> None:
    vllm.sick = True
    assert stage.ask("w1").status_code == 503
    vllm.sick = False
    give_up(stage, "stuck")
    assert closed(stage).failures == 2


@pytest.mark.parametrize(
    ("content", "failures"), [("hangup", 1), ("boom", 0)], ids=["lost connection", "error"]
)
def test_a_close_judges_a_failed_call_by_its_connection(
    stage: Any, vllm: Any, monkeypatch: pytest.MonkeyPatch, content: str, failures: int
) -> None:
    """Nobody has asked for the health of a policy server that has just died.

    An agent that sends a request that a healthy server cannot answer, and ends, is not tried again.
    """
    monkeypatch.setattr("ltrain_train.gateway.policy_exchange.DETECTION_DELAY", 30.0)
    with ThreadPoolExecutor(1) as pool:
        in_flight(stage, vllm, pool, content)
        time.sleep(0.3)
        assert closed(stage).failures == failures
