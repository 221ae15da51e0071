"""A reward that is an HTTP service: a real server on loopback."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ltrain_train.rollout.rewards import RewardFailed, open_reward
from ltrain_train.rollout.tasks import Task

TASK = Task.model_validate({"id": "a", "input": "x", "gold": "g"})
Reply = tuple[int, Any, dict[str, str]]


class Judge(ThreadingHTTPServer):
    """Answers each request with the next of its replies; the last one is repeated."""

    def __init__(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        super().__init__(address, _Handler)
        self.replies: list[Reply] = []
        self.requests: list[tuple[dict[str, str], Any]] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/judge"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Judge

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.requests.append((dict(self.headers), json.loads(body)))
        replies = self.server.replies
        status, value, headers = replies.pop(0) if len(replies) > 1 else replies[0]
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {**headers, "content-length": str(len(content))}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def judge() -> Iterator[Judge]:
    server = Judge()
    yield server
    server.stop()


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
    judge: Judge, score: Any, value: Any, rewards: dict[str, float]
) -> None:
    judge.replies = [(200, value, {})]
    assert score(judge.url, ["r", 2**70]) == rewards
    [(headers, body)] = judge.requests
    assert body == {"task": TASK.model_dump(mode="json"), "result": ["r", 2**70]}
    assert "authorization" not in {name.lower() for name in headers}


def test_the_services_of_the_agent_are_sent(judge: Judge) -> None:
    judge.replies = [(200, 1, {})]
    reward = open_reward(judge.url, Path())
    reward.score(TASK, "r", {"db": "http://127.0.0.1:1"})
    reward.close()
    [(_, body)] = judge.requests
    assert body["services"] == {"db": "http://127.0.0.1:1"}


def test_the_key_is_sent(judge: Judge, score: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTRAIN_REWARD_KEY", "k3y")
    judge.replies = [(200, 1, {})]
    score(judge.url)
    assert {name.lower(): text for name, text in judge.requests[0][0].items()}[
        "authorization"
    ] == "Bearer k3y"


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_service_that_is_away_is_asked_again(judge: Judge, score: Any, status: int) -> None:
    judge.replies = [(status, "busy", {}), (status, "busy", {"retry-after": "0"}), (200, 1, {})]
    assert score(judge.url) == {"reward": 1.0}
    assert len(judge.requests) == 3


def test_a_service_that_starts_later_is_waited_for(score: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    started: list[Judge] = []

    def start() -> None:
        server = Judge(("127.0.0.1", port))
        server.replies = [(200, 0.25, {})]
        started.append(server)

    timer = threading.Timer(0.5, start)
    timer.start()
    try:
        assert score(f"http://127.0.0.1:{port}/judge") == {"reward": 0.25}
    finally:
        timer.join()
        for server in started:
            server.stop()


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
    ],
)
def test_anything_else_is_a_failure_and_not_repeated(
    judge: Judge, score: Any, reply: Reply, says: str
) -> None:
    judge.replies = [reply]
    with pytest.raises(RewardFailed, match=rf"^{judge.url} failed on task 'a'") as failure:
        score(judge.url)
    assert says in str(failure.value)
    assert len(judge.requests) == 1


def test_a_service_that_stays_away_is_a_failure_that_names_the_fix(
    judge: Judge, score: Any
) -> None:
    judge.replies = [(503, b"", {})]
    with pytest.raises(RewardFailed, match=r"within 1 s: status 503\. Start the service, or raise"):
        score(judge.url, timeout=1)


def test_a_pause_beyond_the_timeout_is_not_waited_for(judge: Judge, score: Any) -> None:
    judge.replies = [(429, b"", {"retry-after": "3600"})]
    with pytest.raises(RewardFailed, match=r"within 20 s: status 429"):
        score(judge.url, timeout=20)
    assert len(judge.requests) == 1


def test_a_hanging_service_is_a_failure(score: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(RewardFailed, match=r"within 1 s: ReadTimeout"):
            score(url, timeout=1)


def test_credentials_of_the_url_are_not_in_errors(judge: Judge, score: Any) -> None:
    judge.replies = [(403, b"", {})]
    url = judge.url.replace("http://", "http://me:pa55word@")
    with pytest.raises(RewardFailed) as failure:
        score(url)
    assert "pa55word" not in str(failure.value)
