"""HTTP below a model call: spans of what fails, none of what is answered."""

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


def test_a_request_is_a_span_where_it_fails_or_is_no_models(
    start: Start, sink: Sink, model: Model
) -> None:
    broken, gone = Broken(), Broken()
    for server in (broken, gone):
        server.start()
    gone.stop()
    ports = [str(server.port) for server in (model, broken, gone)]
    assert start("sending", *ports).wait() == (0, "", "")
    broken.stop()
    calls = sink.named("openai.chat")
    below = [
        [
            (span.status, span.attributes["error.type"], span.attributes["url.full"])
            for span in sink.named("POST")
            if span.parent == call.id
        ]
        for call in calls
    ]
    boom = (2, "500", f"{broken.url}/v1/chat/completions")
    away = (2, "ConnectError", f"{gone.url}/v1/chat/completions")
    assert below == [[], [boom, boom], [away, away], [boom], [away]]
    parents = [headers["traceparent"].split("-")[2] for _, headers, _ in broken.requests]
    assert parents == [calls[1].id, calls[1].id, calls[3].id]
    [other] = [span for span in sink.named("POST") if not span.parent]
    assert other.scope == "opentelemetry.instrumentation.httpx"
