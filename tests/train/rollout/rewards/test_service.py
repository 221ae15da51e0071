"""A reward that is an HTTP service: a real server on loopback."""

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.train.rollout.rewards.reply_server import Reply, ReplyServer, replying

from ltrain_train.rollout.rewards import RewardFailed, open_reward
from ltrain_train.rollout.rewards.endpoint import MAX_RESPONSE_BYTES
from ltrain_train.rollout.tasks import Task

BOMB = gzip.compress(bytes(64 << 20))
TASK = Task.model_validate({"id": "a", "input": "x", "gold": "g"})


@pytest.fixture
def judge() -> Iterator[ReplyServer]:
    with replying() as server:
        yield server


@pytest.fixture
def score() -> Iterator[Callable[..., dict[str, float]]]:
    opened = []

    def score(url: str, result: Any = "r", timeout: float = 60) -> dict[str, float]:
        opened.append(open_reward(url, Path(), timeout))
        return opened[-1].score(TASK, result)

    yield score
    for each in opened:
        each.close()


@pytest.mark.parametrize(
    ("value", "rewards"),
    [
        (0.5, {"reward": 0.5}),
        (True, {"reward": 1.0}),
        ({"answer": 1, "style": 0.25}, {"answer": 1.0, "style": 0.25}),
        ({}, {}),
    ],
)
def test_a_service_returns_a_number_or_numbers_by_name(
    judge: ReplyServer, score: Any, value: Any, rewards: dict[str, float]
) -> None:
    judge.replies = [(200, value, {})]
    assert score(judge.url, ["r", 2**70]) == rewards
    [(_, headers, body, _)] = judge.requests
    assert body == {"task": TASK.model_dump(mode="json"), "result": ["r", 2**70]}
    assert "authorization" not in {name.lower() for name in headers}


def test_the_services_of_the_agent_are_sent(judge: ReplyServer) -> None:
    judge.replies = [(200, 1, {})]
    reward = open_reward(judge.url, Path())
    reward.score(TASK, "r", {"db": "http://127.0.0.1:1"})
    reward.close()
    [(_, _, body, _)] = judge.requests
    assert body["services"] == {"db": "http://127.0.0.1:1"}


def test_the_key_is_sent(judge: ReplyServer, score: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTRAIN_REWARD_KEY", "k3y")
    judge.replies = [(200, 1, {})]
    score(judge.url)
    assert {name.lower(): text for name, text in judge.requests[0].headers.items()}[
        "authorization"
    ] == "Bearer k3y"


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_service_that_is_away_is_asked_again(judge: ReplyServer, score: Any, status: int) -> None:
    judge.replies = [(status, "busy", {}), (status, "busy", {"retry-after": "0"}), (200, 1, {})]
    assert score(judge.url) == {"reward": 1.0}
    assert len(judge.requests) == 3


def test_a_service_that_starts_later_is_waited_for(score: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with ExitStack() as stack:
        timer = threading.Timer(0.5, lambda: stack.enter_context(replying((200, 0.25), port=port)))
        timer.start()
        try:
            assert score(f"http://127.0.0.1:{port}/judge") == {"reward": 0.25}
        finally:
            timer.join()  # before the stack closes the server


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ((200, b"very good", {}), "'very good' is not JSON"),
        ((200, "0.5", {}), "'0.5' is a text, not a number"),
        ((200, b"NaN", {}), "is not JSON"),
        ((200, None, {}), "NoneType"),
        ((200, [1.0], {}), "list"),
        ((200, b"[" * 100_000, {}), "is not JSON"),
        ((204, b"", {}), "status 204"),
        ((302, b"", {"location": "/other"}), "status 302"),
        ((401, {"error": "no key"}, {}), 'status 401: {"error": "no key"}'),
        ((200, b"1" * (MAX_RESPONSE_BYTES + 1), {}), "the answer has more than 1 MiB"),
        ((200, b"1" * (64 << 20), {}), "the answer has more than 1 MiB"),
        ((400, b"1" * (64 << 20), {}), "the answer has more than 1 MiB"),
        ((200, BOMB, {"content-encoding": "gzip"}), "has the encoding 'gzip', which was not"),
    ],
)
def test_anything_else_is_a_failure_and_not_repeated(
    judge: ReplyServer, score: Any, reply: Reply, says: str
) -> None:
    judge.replies = [reply]
    with pytest.raises(RewardFailed, match=rf"^{judge.url} failed on task 'a'") as failure:
        score(judge.url)
    assert says in str(failure.value)
    assert len(judge.requests) == 1


def test_a_service_that_sends_its_answer_slowly_is_given_up_at_the_deadline(score: Any) -> None:
    def drip() -> None:
        client, _ = silent.accept()
        with client, suppress(OSError):
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            while not ended.wait(0.1):
                client.sendall(b" ")

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(RewardFailed, match=r"within 1 s: the answer has not ended"):
                score(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout=1)
        finally:
            ended.set()
            thread.join()


def test_a_service_that_stays_away_is_a_failure_that_names_the_fix(
    judge: ReplyServer, score: Any
) -> None:
    judge.replies = [(503, b"", {})]
    with pytest.raises(RewardFailed, match=r"within 1 s: status 503\. Start the service, or raise"):
        score(judge.url, timeout=1)


def test_a_pause_beyond_the_timeout_is_not_waited_for(judge: ReplyServer, score: Any) -> None:
    judge.replies = [(429, b"", {"retry-after": "3600"})]
    with pytest.raises(RewardFailed, match=r"within 20 s: status 429"):
        score(judge.url, timeout=20)
    assert len(judge.requests) == 1


def test_a_hanging_service_is_a_failure(score: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(RewardFailed, match=r"within 1 s: ReadTimeout"):
            score(url, timeout=1)


def test_credentials_of_the_url_are_not_in_errors(judge: ReplyServer, score: Any) -> None:
    judge.replies = [(403, b"", {})]
    url = judge.url.replace("http://", "http://me:pa55word@")
    with pytest.raises(RewardFailed) as failure:
        score(url)
    assert "pa55word" not in str(failure.value)
