"""Answers of servers fill no memory, and a redirect carries no key to another host."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.fake_vllm import FakeVllm
from tests.train.gateway.stage import Stage

from ltrain_train.store.service_key import accepts_key


@contextmanager
def server(status: int, location: str = "") -> Iterator[tuple[str, list[str]]]:
    """Run a server that answers each request with a status; yield its URL and its requests."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(f"{self.command} {self.headers.get('authorization')}")
            self.send_response(status)
            if location:
                self.send_header("location", location)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}", requests
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_of_the_collector_gets_no_key(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    with server(200) as (other, stolen), server(status, other) as (url, requests):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        assert accepts_key("Bearer a-key")
    assert requests == ["POST Bearer a-key"]
    assert stolen == []


def message(stage: Stage, content: str, *, stream: bool = False) -> str:
    """Return the error of a call."""
    response = stage.ask(content, stream=stream)
    if not stream:
        assert response.status_code == 400, response.text
    return response.text


def test_a_compressed_answer_is_not_decompressed(stage: Stage) -> None:
    assert "has the encoding 'gzip', which was not requested" in message(stage, "w3 zip")
    assert "which was not requested" in message(stage, "w3 zip", stream=True)
    assert stage.ask("w3").status_code == 200


def test_no_request_allows_compression(stage: Stage, vllm: FakeVllm) -> None:
    assert stage.ask("w3").status_code == 200
    assert vllm.headers[-1]["accept-encoding"] == "identity"


def test_the_bytes_of_an_answer_are_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = "ltrain_train.gateway.serving.upstream"
    monkeypatch.setattr(f"{limits}.MAX_ANSWER_BYTES", 100)
    assert "the answer has more than 0 MiB" in message(stage, "w3")
    monkeypatch.setattr(f"{limits}.MAX_EVENT_BYTES", 100)
    assert "an event has more than 0 MiB" in message(stage, "w3", stream=True)
    counts = stage.client.close_attempt(stage.identity, stage.key())
    assert counts.failures == 0


def test_a_long_answer_is_read_in_the_thread(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ltrain_train.gateway.exchange.INLINE_ANSWER_BYTES", 10)
    answer = stage.ask("w3 w4").json()
    assert answer["choices"][0]["message"]["content"] == "w3 w4"
    [span] = stage.wait_spans(1)
    assert span["attributes"]["ltrain.response_token_ids"] == "[3,4]"
