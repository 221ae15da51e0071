"""vLLM that sleeps while a learner has the GPU: calls wait, and its next version wakes it."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.train.gateway.stage import Stage

from ltrain_train.gateway.connection import GatewayRefused
from ltrain_train.processes import GpuTurn


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[GpuTurn]:
    """The turn of a learner."""
    with closing(GpuTurn(tmp_path / "home")) as turn:
        yield turn


@pytest.fixture
def sleeper(prepared_stage: Stage) -> Iterator[Stage]:
    """A gateway whose vLLM has the GPU in turn with a learner."""
    stage = prepared_stage
    with closing(GpuTurn(stage.home)) as stage.turn, stage.running():
        yield stage


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def wait_for_a_request(vllm: Any, count: int) -> None:
    end = time.monotonic() + 10
    while len(vllm.requests) < count:
        assert time.monotonic() < end
        time.sleep(0.01)


def answer(call: Future[Any]) -> str:
    """Return the content that a waiting call is answered with."""
    return str(call.result(30).json()["choices"][0]["message"]["content"])


def test_calls_wait_from_the_sleep_to_the_next_version(
    sleeper: Stage, learner: GpuTurn, vllm: Any, threads: ThreadPoolExecutor
) -> None:
    assert not learner.take(0)
    sleeper.client.sleep()
    assert learner.take(0) and vllm.asleep == {"weights", "kv_cache"}
    call = threads.submit(sleeper.ask, "weights")
    health = sleeper.http.get("/health")
    assert (health.status_code, health.json()["reason"]) == (
        503,
        "vLLM sleeps while the learner uses the GPU",
    )
    waking = threads.submit(sleeper.client.wake)
    time.sleep(0.3)
    assert not waking.done() and vllm.asleep == {"weights", "kv_cache"}
    learner.end()
    waking.result(30)
    assert vllm.asleep == {"kv_cache"} and not learner.take(0)
    time.sleep(0.2)
    assert not call.done() and not vllm.requests
    sleeper.client.load("policy", 1)
    assert answer(call) == "w1"
    assert [path for path, _ in vllm.admin] == [
        "/sleep?level=1",
        "/wake_up?tags=weights",
        "/wake_up?tags=weights",  # a load does not rely on a wake before it
        "/pause?mode=wait",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/update_weight_version",
        "/resume",
        "/wake_up?tags=kv_cache",
    ]


def test_a_version_wakes_vllm_by_itself(sleeper: Stage, vllm: Any) -> None:
    sleeper.client.sleep()
    sleeper.client.sleep()  # as a run that has not received the answer
    sleeper.client.load("policy", 0)
    assert vllm.asleep == set() and sleeper.ask("w3").status_code == 200
    sleeper.client.wake()  # it is awake: this does not shut the gate
    assert sleeper.ask("w3").status_code == 200


def test_vllm_sleeps_when_the_calls_in_flight_have_ended(
    sleeper: Stage, vllm: Any, threads: ThreadPoolExecutor
) -> None:
    call = threads.submit(sleeper.ask, "slow w3")
    wait_for_a_request(vllm, 1)
    sleeper.client.sleep()
    assert answer(call) == "w3" and vllm.asleep


def test_a_version_that_vllm_refuses_leaves_the_previous_one_awake(
    sleeper: Stage, vllm: Any
) -> None:
    sleeper.client.load("policy", 1)
    sleeper.client.sleep()
    vllm.refuse_reload = 1
    with pytest.raises(GatewayRefused, match="no such weights"):
        sleeper.client.load("policy", 0)
    assert sleeper.ask("weights").json()["choices"][0]["message"]["content"] == "w1"


def test_a_memory_that_is_not_free_is_an_error_until_it_is(
    sleeper: Stage, vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper.client.sleep()
    used = threading.Event()
    used.set()

    def take_gpu() -> None:
        if used.is_set():
            raise MemoryError("CUDA out of memory")

    monkeypatch.setattr(vllm, "take_gpu", take_gpu)
    with pytest.raises(GatewayRefused, match="CUDA out of memory"):
        sleeper.client.load("policy", 1)
    assert sleeper.http.get("/health").status_code == 503
    used.clear()
    sleeper.client.load("policy", 1)
    assert sleeper.ask("w3").status_code == 200


def test_a_vllm_without_sleep_mode_does_not_sleep(stage: Any, vllm: Any) -> None:
    with pytest.raises(GatewayRefused, match="--enable-sleep-mode"):
        stage.client.sleep()
    stage.client.wake()
    assert stage.ask("w3").status_code == 200 and vllm.admin == []
