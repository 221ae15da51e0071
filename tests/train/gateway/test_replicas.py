"""Several policy servers behind a router, of which each call is checked, and those of one vLLM."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fake_vllm import FakeVllm

from ltrain_train.gateway.connection import GatewayRefused
from ltrain_train.gateway.serving import host

WAIT = 30.0


class Router:
    """An OpenAI-compatible router that sends each call to the next replica."""

    def __init__(self, replicas: list[FakeVllm]) -> None:
        turns, lock = cycle(replicas), threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                self._forward("GET", replicas[0].url, None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with lock:
                    replica = next(turns)
                self._forward("POST", replica.url, body)

            def _forward(self, method: str, url: str, body: bytes | None) -> None:
                answer = httpx.request(
                    method, url + self.path, content=body, timeout=WAIT, trust_env=False
                )
                self.send_response(answer.status_code)
                self.send_header("content-type", answer.headers["content-type"])
                self.send_header("content-length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def replicas() -> Iterator[list[FakeVllm]]:
    with ExitStack() as stack:
        yield [stack.enter_context(FakeVllm()) for _ in range(2)]


@pytest.fixture
def stage(
    replicas: list[FakeVllm], tmp_path: Path, load: Any, write_model: Any, write_adapter: Any
) -> Iterator[Any]:
    router = Router(replicas)
    thread = threading.Thread(target=router.server.serve_forever, args=(0.02,))
    thread.start()
    stage = load("stage").Stage(router.url, tmp_path / "home")
    stage.replicas = tuple(replica.url for replica in replicas)
    stage.policies.register("policy", write_model(tmp_path / "model"))
    stage.policies.add("policy", write_model(tmp_path / "new", fill=1))
    for number in (2, 3):
        stage.policies.add("policy", write_adapter(tmp_path / f"a{number}", number), parent=0)
    for replica in replicas:
        replica.weights = "policy/v0"
    with stage.running():
        yield stage
    router.server.shutdown()
    router.server.server_close()
    thread.join()


def contents(stage: Any, count: int = 4) -> set[str]:
    """Return what calls to all replicas say of their version."""
    answers = [stage.ask("weights", identity=None) for _ in range(count)]
    return {answer.json()["choices"][0]["message"]["content"] for answer in answers}


def test_a_publication_reaches_each_replica(stage: Any, replicas: list[FakeVllm]) -> None:
    stage.client.load("policy", 1)
    assert [replica.weights for replica in replicas] == ["policy/v1"] * 2
    assert contents(stage) == {"w1"}
    stage.client.load("policy", 2)
    assert [list(replica.adapters) for replica in replicas] == [["policy@2"]] * 2
    assert [replica.weights for replica in replicas] == ["policy/v0"] * 2
    assert contents(stage) == {"w2"}
    assert all(len(replica.requests) >= 2 for replica in replicas)


def test_a_replica_that_refuses_a_version_keeps_all_on_the_previous_one(
    stage: Any, replicas: list[FakeVllm]
) -> None:
    replicas[1].refuse_reload = 1
    with pytest.raises(GatewayRefused, match=rf"server at {replicas[1].url} refused POST /coll"):
        stage.client.load("policy", 1)
    assert [replica.weights for replica in replicas] == ["policy/v0"] * 2
    assert contents(stage) == {"w0"}


def test_an_answer_of_a_replica_without_the_version_is_refused(
    stage: Any, replicas: list[FakeVllm]
) -> None:
    replicas[1].weights = "default"  # it was started again
    for stream in (False, True):
        answer = stage.ask("weights", stream=stream)
        text = answer.text if stream else answer.json()["error"]["message"]
        assert "A replica of the policy server lost its weights" in text
        assert stream or answer.status_code == 503
    spans = [span for span in stage.spans() if span["name"].startswith("chat")]
    assert {span["attributes"]["error.type"] for span in spans} == {"version_unknown"}
    assert stage.client.close_attempt(stage.identity, stage.key()).failures == 2
    assert stage.publication.server.lost_weights


def test_a_lost_adapter_is_an_outage_until_it_is_loaded_again(
    stage: Any, replicas: list[FakeVllm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "UPSTREAM_POLL", 0.01)
    stage.client.load("policy", 2)
    replicas[0].adapters.clear()
    replicas[1].adapters.clear()
    answer = stage.ask("weights")
    assert answer.status_code == 503
    assert "does not have 'policy@2' any more" in answer.json()["error"]["message"]
    stage.watch()
    assert contents(stage) == {"w2"}
    assert stage.client.close_attempt(stage.identity, stage.key()).failures == 1


def test_lost_weights_are_loaded_again_while_calls_wait(
    stage: Any, replicas: list[FakeVllm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "UPSTREAM_POLL", 0.01)
    stage.watch()
    replicas[1].weights, replicas[1].adapters = "default", {}
    until = time.monotonic() + WAIT
    while stage.ask("weights", identity=None).status_code != 200:
        assert time.monotonic() < until
    assert contents(stage) == {"w0"}
    assert [replica.weights for replica in replicas] == ["policy/v0"] * 2
    lost = "the policy server lost weights or adapters; they are loaded again"
    assert lost in stage.log_lines
    assert json.loads(stage.http.get("/health").text)["status"] == "ready"


@pytest.fixture
def parallel(vllm: FakeVllm, tmp_path: Path, load: Any, write_model: Any) -> Iterator[Any]:
    """A gateway of a vLLM with three replicas."""
    stage = load("stage").Stage(vllm.url, tmp_path / "home")
    stage.policies.register("policy", write_model(tmp_path / "model"))
    stage.data_parallel = 3
    with stage.running():
        yield stage


def ranks(vllm: FakeVllm) -> list[str | None]:
    """Return the replica that each call named."""
    return [headers.get("x-data-parallel-rank") for headers in vllm.headers]


def test_an_attempt_stays_with_a_replica_and_others_go_to_the_least_busy(
    parallel: Any, vllm: FakeVllm
) -> None:
    attempts = [replace(parallel.identity, rollout=f"r{number}") for number in range(6)]
    with ThreadPoolExecutor(len(attempts)) as pool:
        held = pool.map(lambda each: parallel.ask("slow w1", identity=each), attempts)
        assert [answer.status_code for answer in held] == [200] * len(attempts)
    assert sorted(filter(None, ranks(vllm))) == ["0", "0", "1", "1", "2", "2"]
    for attempt in attempts:
        vllm.headers.clear()
        for _ in range(3):
            parallel.ask("w1", identity=attempt)
        assert len(set(ranks(vllm))) == 1


def test_an_attempt_leaves_a_replica_that_is_much_busier(parallel: Any, vllm: FakeVllm) -> None:
    with ThreadPoolExecutor(9) as pool:
        assert all(pool.map(lambda _: parallel.ask("slow w1").status_code == 200, range(9)))
    assert {rank: ranks(vllm).count(rank) for rank in set(ranks(vllm))} == {"0": 5, "1": 4}


def test_a_vllm_without_replicas_gets_no_header(stage: Any, replicas: list[FakeVllm]) -> None:
    contents(stage)
    assert {rank for replica in replicas for rank in ranks(replica)} == {None}
