"""Requests of many elements or bytes are refused or answered, and others do not wait for them."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from benchmarks.support.request_shapes import CHAT, MESSAGES, RESPONSES, SHAPES, USER, Shape
from tests.train.gateway.stage import IDENTITY, Stage

from ltrain_train.gateway.apis.request_limits import RequestLimits

LIMITS = RequestLimits()
OTHER = replace(IDENTITY, rollout="other")
MAX_WAIT = 4.0
"""Seconds in which a machine with much other work answers: with 13 processes that waited for two
cores it took 1.1 at most. `make bench-block` measures the milliseconds of an idle one."""


def message(response: httpx.Response) -> str:
    return str(response.json()["error"]["message"])


def raw(stage: Stage, path: str, body: bytes) -> httpx.Response:
    """Post bytes for an attempt."""
    prefix = f"/rollout/{IDENTITY.rollout}/attempt/{IDENTITY.attempt}"
    headers = {"authorization": f"Bearer {stage.key()}"}
    return stage.http.post(prefix + path, content=body, headers=headers)


@contextmanager
def others(stage: Stage) -> Iterator[list[float]]:
    """Yield the seconds that `/health` and closes of another attempt take during the block."""
    waits: list[float] = []
    probed, ended = threading.Event(), threading.Event()

    def probe() -> None:
        with httpx.Client(base_url=stage.url, timeout=60, trust_env=False) as client:
            while not ended.is_set():
                began = time.monotonic()
                assert client.get("/health").status_code == 200
                stage.client.close_attempt(OTHER, stage.key(OTHER))
                waits.append(time.monotonic() - began)
                probed.set()
                time.sleep(0.01)

    thread = threading.Thread(target=probe)
    thread.start()
    assert probed.wait(30)
    waits.clear()
    try:
        yield waits
    finally:
        probed.clear()
        assert probed.wait(30)  # one that began during the block
        ended.set()
        thread.join()


def assert_agents_fault(stage: Stage) -> None:
    """Check that the attempt's calls do not make it an outage."""
    counts = stage.client.close_attempt(IDENTITY, stage.key())
    assert (counts.failures, counts.given_up) == (0, 0)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_too_many_elements_are_refused_in_the_form_of_the_api(stage: Stage, shape: Shape) -> None:
    with others(stage) as waits:
        response = stage.post(shape.path, shape.body(LIMITS.items + 1))
    assert response.status_code == 413
    assert ("type" in response.json()) is (shape.path == MESSAGES)
    assert "LTRAIN_REQUEST_ITEMS" in message(response)
    assert max(waits) < MAX_WAIT
    assert_agents_fault(stage)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_others_do_not_wait_for_the_largest_request(stage: Stage, shape: Shape) -> None:
    with others(stage) as waits:
        response = stage.post(shape.path, shape.body(LIMITS.items - 64))
    assert response.status_code in (200, 400), response.text[:300]
    assert len(response.content) < LIMITS.size
    assert max(waits) < MAX_WAIT
    assert_agents_fault(stage)


VALUES = b"[" + b"[]," * LIMITS.values + b"1]"
BODIES: dict[str, tuple[int, bytes]] = {
    "values": (413, b'{"model": "policy", "messages": %s}' % VALUES),
    "values of a field": (413, b'{"model": "policy", "metadata": {"a": %s}}' % VALUES),
    "fields": (413, json.dumps({str(n): 1 for n in range(LIMITS.items + 1)}).encode()),
    "prompt": (413, json.dumps({"model": "policy", "prompt": [1] * LIMITS.values}).encode()),
    "name": (400, json.dumps({"model": "policy", "messages": USER, "n" * 500: 1}).encode()),
    "model": (400, json.dumps({"model": "m" * 10_000_000, "messages": USER}).encode()),
    "role": (400, json.dumps({"model": "policy", "messages": [{"role": ["r" * 10**7]}]}).encode()),
    "tool choice": (
        400,
        json.dumps(
            {"model": "policy", "input": "w", "tool_choice": {"type": "t" * 10**7}}
        ).encode(),
    ),
    "block": (
        400,
        json.dumps(
            {
                "model": "policy",
                "max_tokens": 1,
                "messages": [{"role": "user", "content": [{"type": "t" * 10**7}]}],
            }
        ).encode(),
    ),
    "text": (
        400,
        json.dumps(
            {"model": "policy", "messages": [{"role": "user", "content": "w" * 10**7}] * 2}
        ).encode(),
    ),
    "digits": (400, b'{"model": "policy", "messages": ' + b"1" * 10_000_000 + b"}"),
    "quotes": (400, b'{"model": "policy", "messages": "' + b'\\"' * 10_000_000 + b'"}'),
    "commas in a text": (400, b'{"model": "policy", "messages": "' + b"," * 10_000_000 + b'"}'),
}
PATHS = {"prompt": "/v1/completions", "tool choice": RESPONSES, "block": MESSAGES}


@pytest.mark.parametrize("name", BODIES)
def test_long_parts_are_refused_with_a_short_sentence(stage: Stage, name: str) -> None:
    status, body = BODIES[name]
    stage.publication.upstream.max_model_len = 4096
    with others(stage) as waits:
        response = raw(stage, PATHS.get(name, CHAT), body)
    assert response.status_code == status, response.text[:300]
    assert len(response.content) < 10_000
    assert max(waits) < MAX_WAIT
    assert_agents_fault(stage)


def test_a_text_beyond_the_context_is_refused_before_the_policy_server(
    stage: Stage, vllm: Any
) -> None:
    stage.publication.upstream.max_model_len = 4096
    before = len(vllm.requests)
    response = stage.ask("w3 " * 400_000)
    assert response.status_code == 400
    assert message(response).startswith("This model's maximum context length is 4096 tokens.")
    assert len(vllm.requests) == before
    assert stage.ask("w3 " * 10_000).status_code == 200  # the policy server decides
    assert_agents_fault(stage)


def announce(stage: Stage, size: int) -> socket.socket:
    """Send the head of a request with a body of `size` bytes, and no body."""
    host, port = stage.url.removeprefix("http://").split(":")
    path = f"/rollout/{IDENTITY.rollout}/attempt/{IDENTITY.attempt}{CHAT}"
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {stage.key()}\r\n"
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(f"{head}content-length: {size}\r\n\r\n".encode())
    return connection


def test_a_body_that_is_announced_as_too_large_is_not_read(stage: Stage) -> None:
    with announce(stage, LIMITS.size + 1) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    assert stage.ask("w3").status_code == 200


def test_a_body_that_never_arrives_is_given_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ltrain_train.gateway.request_pool.READ_TIMEOUT", 0.2)
    with announce(stage, 100_000) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")
    assert_agents_fault(stage)


def test_an_attempt_that_is_refused_again_and_again_is_read_slowly(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ltrain_train.gateway.request_pool.FAULT_PAUSE", 2.0)
    assert {stage.ask("w3", n=0).status_code for _ in range(9)} == {400}
    began = time.monotonic()
    assert stage.ask("w3", identity=OTHER).status_code == 200
    assert stage.ask("w3").status_code == 200
    assert time.monotonic() - began >= 2.0
    assert stage.ask("w3").status_code == 200
    calls = [each for each in stage.wait_spans(3) if each["attributes"].get("ltrain.delivered")]
    assert len(calls) == 3


def test_requests_of_another_attempt_wait_and_are_answered(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that fills the memory gets 503; small requests of others are answered at once."""
    monkeypatch.setattr("ltrain_train.gateway.request_pool.WAIT_TIMEOUT", 0.5)
    with announce(stage, LIMITS.size), announce(stage, LIMITS.size):
        time.sleep(0.1)
        response = stage.ask("w3")
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert stage.ask("w3", identity=OTHER).status_code == 200
    assert stage.ask("w3").status_code == 200  # both connections are gone
    assert_agents_fault(stage)
