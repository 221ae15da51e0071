"""Fakes at the process border: an OTLP sink, an OpenAI server, and agents as real processes."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

AGENTS = Path(__file__).parent / "agents"
LAUNCHER = Path(sys.executable).parent / "opentelemetry-instrument"


@dataclass(frozen=True)
class Seen:
    """One span as it arrived."""

    name: str
    scope: str
    trace: str
    id: str
    parent: str
    status: int
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)


def _map(pairs: list[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def decode(request: bytes) -> list[Seen]:
    return [
        Seen(
            span.name,
            scoped.scope.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.status.code,
            _map(list(span.attributes)),
            _map(list(group.resource.attributes)),
        )
        for group in ExportTraceServiceRequest.FromString(request).resource_spans
        for scoped in group.scope_spans
        for span in scoped.spans
    ]


@dataclass
class Server:
    """An HTTP server in a thread that can be stopped and started again on its port."""

    port: int = 0
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    _http: ThreadingHTTPServer | None = None
    _connections: list[socket.socket] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def respond(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        raise NotImplementedError

    def start(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                server.requests.append((self.path, headers, body))
                status, kind, answer = server.respond(self.path, body)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        class Http(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def process_request(self, request: Any, client: Any) -> None:
                server._connections.append(request)
                super().process_request(request, client)

            def handle_error(self, *_: object) -> None:
                pass  # a killed agent closes its connection in the middle

        self._http = Http(("127.0.0.1", self.port), Handler)
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
        for connection in self._connections:  # kept ones would be served on
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._connections.clear()
        self._http = None


@dataclass
class Sink(Server):
    """An OTLP/HTTP collector that keeps spans in memory."""

    status: int = 200
    delay: float = 0.0
    spans: list[Seen] = field(default_factory=list)

    def respond(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        assert path == "/v1/traces"
        time.sleep(self.delay)
        if self.status == 200:
            self.spans.extend(decode(body))
        told = b"" if self.status == 200 else Status(message="told so.").SerializeToString()
        return self.status, "application/x-protobuf", told

    def named(self, name: str) -> list[Seen]:
        return [span for span in self.spans if span.name == name]

    def wait(self, name: str, count: int = 1, seconds: float = 60.0) -> list[Seen]:
        deadline = time.monotonic() + seconds
        while len(self.named(name)) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(self.named(name)) >= count, sorted({span.name for span in self.spans})
        return self.named(name)


@dataclass
class Model(Server):
    """An OpenAI chat server: it asks for the first offered tool once, then answers."""

    def respond(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        if path != "/v1/chat/completions":
            return 404, "text/plain", b""
        asked = json.loads(body)
        tools = asked.get("tools")
        answered = any(message["role"] == "tool" for message in asked["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": "sunny"}
        if tools and not answered:
            call = {"name": tools[0]["function"]["name"], "arguments": '{"city": "Rome"}'}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
            }
        return self._stream(message) if asked.get("stream") else self._whole(message)

    def _whole(self, message: dict[str, Any]) -> tuple[int, str, bytes]:
        return 200, "application/json", json.dumps(self._body("message", message)).encode()

    def _stream(self, message: dict[str, Any]) -> tuple[int, str, bytes]:
        chunk = self._body("delta", message) | {"object": "chat.completion.chunk"}
        return 200, "text/event-stream", f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()

    def _body(self, key: str, message: dict[str, Any]) -> dict[str, Any]:
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        return {
            "id": f"chatcmpl-{len(self.requests)}",
            "object": "chat.completion",
            "created": 1,
            "model": "fake",
            "choices": [{"index": 0, key: message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
        }


@pytest.fixture
def sink() -> Iterator[Sink]:
    server = Sink()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def model() -> Iterator[Model]:
    server = Model()
    server.start()
    yield server
    server.stop()


@dataclass(frozen=True)
class Agent:
    """A started agent process."""

    process: subprocess.Popen[str]

    def says(self, line: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == line

    def wait(self, seconds: float = 60) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err


Start = Callable[..., Agent]


@pytest.fixture
def start(sink: Sink, model: Model, tmp_path: Path) -> Iterator[Start]:
    """Start `opentelemetry-instrument python agents/NAME.py ARGS` against the fakes."""
    started: list[subprocess.Popen[str]] = []

    def begin(name: str, *args: str, plain: bool = False, **environ: str) -> Agent:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "LTRAIN_"))}
        given = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url,
            "LTRAIN_HOME": str(tmp_path / "home"),
            "OPENAI_BASE_URL": f"{model.url}/v1",
            "OPENAI_API_KEY": "none",
        }
        launcher = [] if plain else [str(LAUNCHER)]
        # a parent under nohup, or in the background, has signals ignored, and hands that down
        signals = ["env", "--default-signal"]
        process = subprocess.Popen(
            [*signals, *launcher, sys.executable, str(AGENTS / f"{name}.py"), *args],
            env=kept | given | environ,
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return Agent(process)

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
