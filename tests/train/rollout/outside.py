"""A fake of the HTTP servers that the runner and its agents call, in one small server.

It is a gateway (chat completions per rollout, `close`, `/health`) and an OTLP collector. Replies
are the first rule whose text occurs in the last message. `/v1/chat/completions` works too, so it
stands in for any OpenAI-compatible server.
"""

import gzip
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

PATH = re.compile(r"/rollout/(?P<rollout>\w+)/attempt/(?P<attempt>\d+)/(?P<rest>.*)")


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    name: str
    scope: str
    trace: str
    span: str
    parent: str
    failed: bool
    start: int
    end: int
    service: str
    instance: str
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReceivedCall:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Outside:
    """The fake gateway and collector, and what they received."""

    rules: list[tuple[str, str]] = field(default_factory=list)
    """(text in the last message, reply); the first that fits."""
    reply: str = "SELECT 1;"
    """The reply if no rule fits."""
    down: bool = False
    """Whether the gateway answers 502 to every call."""
    status: str = "ready"
    """The status in `/health`; unless it is `ready`, calls are answered 502."""
    refuse_calls: int = 0
    """How many calls are answered 502 from now on."""
    on_refusal: Callable[[], None] = lambda: None
    """Called before a call is answered 502."""
    call_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds that the calls of attempts took, by execution id."""
    refused: threading.Event = field(default_factory=threading.Event)
    """Set when a chat completion was answered 502."""
    pause: float = 0.0
    """Seconds that a call takes."""
    calls: list[ReceivedCall] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    """OTLP requests, unparsed."""
    closed: list[str] = field(default_factory=list)
    """Execution ids whose key was revoked."""
    answered: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    _spans: dict[tuple[str, str], ReceivedSpan] = field(default_factory=dict)

    def __enter__(self) -> "Outside":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spans(self, **wanted: object) -> list[ReceivedSpan]:
        """Return the spans by start time that match `wanted`: fields, or a rollout id."""
        rollout = wanted.pop("rollout", None)
        spans = sorted(list(self._spans.values()), key=lambda span: span.start)
        return [
            span
            for span in spans
            if all(getattr(span, name) == value for name, value in wanted.items())
            and rollout in (None, span.attributes.get("ltrain.rollout.id"))
        ]

    def wait_spans(self, count: int, seconds: float = 10.0, **wanted: object) -> list[ReceivedSpan]:
        """Wait for `count` such spans to arrive."""
        until = time.monotonic() + seconds
        while len(spans := self.spans(**wanted)) < count and time.monotonic() < until:
            time.sleep(0.02)
        return spans

    def take(self, request: bytes) -> None:
        """Store the spans of an OTLP request; a copy of a span counts once."""
        self.requests.append(request)
        for resource in ExportTraceServiceRequest.FromString(request).resource_spans:
            owner = {pair.key: _plain(pair.value) for pair in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self._spans[span.trace_id.hex(), span.span_id.hex()] = ReceivedSpan(
                        name=span.name,
                        scope=scope.scope.name,
                        trace=span.trace_id.hex(),
                        span=span.span_id.hex(),
                        parent=span.parent_span_id.hex(),
                        failed=span.status.code == 2,
                        start=span.start_time_unix_nano,
                        end=span.end_time_unix_nano,
                        service=str(owner.get("service.name", "")),
                        instance=str(owner.get("service.instance.id", "")),
                        attributes={p.key: _plain(p.value) for p in span.attributes},
                    )

    def recover(self) -> None:
        """Answer calls again."""
        self.down = False

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a chat completion."""
        last = str(body["messages"][-1]["content"])
        text = next((reply for part, reply in self.rules if part in last), self.reply)
        time.sleep(self.pause)
        return {
            "id": f"chatcmpl-{time.monotonic_ns()}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13},
        }


def _handler(outside: Outside) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_GET(self) -> None:
            status = 502 if outside.down else 200 if outside.status == "ready" else 503
            self._send(status, {"status": outside.status, "seconds": outside.call_seconds})

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                raw = gzip.decompress(raw)
            if self.path == "/v1/traces":
                outside.take(raw)
                self._send(200, b"")
                return
            self._gateway(json.loads(raw or b"{}"))

        def _gateway(self, body: dict[str, Any]) -> None:
            spans = PATH.fullmatch(self.path)
            attempt = f"{spans['rollout']}.{spans['attempt']}" if spans else ""
            closes = self.path.endswith("/close")
            away = outside.status != "ready" or outside.refuse_calls > 0
            if outside.down or (away and not closes):
                if not closes:
                    outside.refuse_calls -= 1
                    outside.on_refusal()
                    outside.failed[attempt] += 1
                    outside.refused.set()
                self._send(502, {"error": {"message": "no upstream"}})
            elif closes:
                outside.closed.append(attempt)
                calls = outside.answered[attempt]
                counts = {"llm_calls": calls, "spans": calls, "failures": outside.failed[attempt]}
                self._send(200, counts)
            elif attempt in outside.closed:
                self._send(403, {"error": {"message": "the attempt is closed"}})
            else:
                outside.calls.append(ReceivedCall(self.path, dict(self.headers.items()), body))
                outside.answered[attempt] += 1
                self._send(200, outside.chat(body))

        def _send(self, status: int, body: dict[str, Any] | bytes) -> None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


if __name__ == "__main__":
    with Outside() as server:
        print(server.url, flush=True)
        threading.Event().wait()
