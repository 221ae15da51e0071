"""Fakes at the process border: an OTLP collector, an OpenAI server, and real agent processes."""

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
class ReceivedSpan:
    """One span as the collector received it."""

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


def decode(request: bytes) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
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
    """An HTTP server in a thread; it can be stopped and restarted on its port."""

    port: int = 0
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    retry_after: str = ""
    """The header of every answer, if there is one."""
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
                if server.retry_after:
                    self.send_header("Retry-After", server.retry_after)
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
                pass  # a killed agent closes its connection in the middle of a request

        self._http = Http(("127.0.0.1", self.port), Handler)
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
        for connection in self._connections:  # persistent connections would stay open
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._connections.clear()
        self._http = None


@dataclass
class Sink(Server):
    """An OTLP/HTTP collector that keeps spans in memory."""

    status: int = 200
    delay: float = 0.0
    spans: list[ReceivedSpan] = field(default_factory=list)

    def respond(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        assert path == "/v1/traces"
        time.sleep(self.delay)
        if self.status == 200:
            self.spans.extend(decode(body))
        error_body = (
            b""
            if self.status == 200
            else Status(message="Rejected by the test.").SerializeToString()
        )
        return self.status, "application/x-protobuf", error_body

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def wait(self, name: str, count: int = 1, seconds: float = 60.0) -> list[ReceivedSpan]:
        deadline = time.monotonic() + seconds
        while len(self.named(name)) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(self.named(name)) >= count, sorted({span.name for span in self.spans})
        return self.named(name)


@dataclass
class Model(Server):
    """An OpenAI chat server: it calls the first tool once, then answers."""

    def respond(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        if path != "/v1/chat/completions":
            return 404, "text/plain", b""
        request = json.loads(body)
        tools = request.get("tools")
        answered = any(message["role"] == "tool" for message in request["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": "sunny"}
        if tools and not answered:
            call = {"name": tools[0]["function"]["name"], "arguments": '{"city": "Rome"}'}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
            }
        return (
            self._respond_stream(message)
            if request.get("stream")
            else self._respond_complete(message)
        )

    def _respond_complete(self, message: dict[str, Any]) -> tuple[int, str, bytes]:
        return 200, "application/json", json.dumps(self._body("message", message)).encode()

    def _respond_stream(self, message: dict[str, Any]) -> tuple[int, str, bytes]:
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

    def expect_line(self, line: str) -> None:
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

    def start_agent(name: str, *args: str, uninstrumented: bool = False, **environ: str) -> Agent:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "LTRAIN_"))}
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url,
            "LTRAIN_HOME": str(tmp_path / "home"),
            "OPENAI_BASE_URL": f"{model.url}/v1",
            "OPENAI_API_KEY": "none",
        }
        launcher = [] if uninstrumented else [str(LAUNCHER)]
        # a parent under nohup, or in the background, ignores signals, and children inherit that
        signals = ["env", "--default-signal"]
        process = subprocess.Popen(
            [*signals, *launcher, sys.executable, str(AGENTS / f"{name}.py"), *args],
            env=inherited | environment | environ,
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return Agent(process)

    yield start_agent
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
