"""HTTP below a model call: failed requests have spans, successful ones have none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.instrument.conftest import Model, Server

if TYPE_CHECKING:
    from tests.instrument.conftest import Sink, Start


class Broken(Server):
    """A model server that answers 500."""

    def respond(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        return 500, "application/json", json.dumps({"error": {"message": "boom"}}).encode()


def test_a_request_has_a_span_if_it_fails_or_is_no_model_call(
    start: Start, sink: Sink, model: Model
) -> None:
    broken, unreachable = Broken(), Broken()
    for server in (broken, unreachable):
        server.start()
    unreachable.stop()
    ports = [str(server.port) for server in (model, broken, unreachable)]
    assert start("sending", *ports).wait() == (0, "", "")
    broken.stop()
    calls = sink.named("openai.chat")
    failures = [
        [
            (span.status, span.attributes["error.type"], span.attributes["url.full"])
            for span in sink.named("POST")
            if span.parent == call.id
        ]
        for call in calls
    ]
    server_error = (2, "500", f"{broken.url}/v1/chat/completions")
    connect_error = (2, "ConnectError", f"{unreachable.url}/v1/chat/completions")
    assert failures == [
        [],
        [server_error, server_error],
        [connect_error, connect_error],
        [server_error],
        [connect_error],
    ]
    parents = [headers["traceparent"].split("-")[2] for _, headers, _ in broken.requests]
    assert parents == [calls[1].id, calls[1].id, calls[3].id]
    [other] = [span for span in sink.named("POST") if not span.parent]
    assert other.scope == "opentelemetry.instrumentation.httpx"
