"""How many results are judged at a time, and how many calls of the reward start in a second."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.train.rollout.rewards.reply_server import Reply, replying

from ltrain_train.rollout.rewards import RewardFailed, RewardLimits, open_reward, source
from ltrain_train.rollout.tasks import Task

TASK = Task(id="a", input="x")
PAIRED = """
import threading
pair, lock, state = threading.Barrier(2, timeout=60), threading.Lock(), {"now": 0, "most": 0}

def score(task, result):
    with lock:
        state["now"] += 1
        state["most"] = max(state["most"], state["now"])
    pair.wait()
    with lock:
        state["now"] -= 1
        return state["most"]
"""


def test_so_many_results_are_judged_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    (tmp_path / "paired.py").write_text(PAIRED)
    reward = open_reward("paired:score", tmp_path, 60, RewardLimits(2))
    with ThreadPoolExecutor(6) as pool:
        scores = list(pool.map(lambda _: reward.score(TASK, None), range(6)))
    assert scores[-1] == {"reward": 2.0}


def test_calls_of_a_service_start_at_the_rate_repeated_ones_too() -> None:
    limits = RewardLimits(4, rate=20)
    failing_by_turns: list[Reply] = [(503, 1), (200, 1)] * 4
    with replying(*failing_by_turns) as judge:
        reward = open_reward(judge.url, Path(), 60, limits)
        began = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            scores = list(pool.map(lambda _: reward.score(TASK, None), range(4)))
        reward.close()
    assert scores == [{"reward": 1.0}] * 4
    arrivals = [request.at for request in judge.requests]
    assert len(arrivals) >= 8
    assert max(arrivals) - began >= (len(arrivals) - 1) / 20


def test_calls_of_a_command_start_at_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "RETRY_PAUSE", 0.0)
    reward = open_reward("echo >>calls; exit 3", tmp_path, 60, RewardLimits(1, rate=5))
    began = time.monotonic()
    with pytest.raises(RewardFailed):
        reward.score(TASK, None)
    reward.close()
    assert time.monotonic() - began >= 2 / 5


def test_a_stopped_run_waits_for_no_place(tmp_path: Path) -> None:
    reward = open_reward("echo 1", tmp_path, 60, RewardLimits(2, rate=0.001))
    assert reward.score(TASK, None) == {"reward": 1.0}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reward.score, TASK, None)
        reward.close()
        with pytest.raises(RewardFailed, match="stopped before the result was judged"):
            waiting.result(60)
