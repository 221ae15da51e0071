"""Agents of real frameworks, run as a user runs them: unchanged, under `opentelemetry-instrument`.

Each runs in the environment that has its framework, against a model server of the tests. Its spans
go to an OTLP collector and from there into a real store, and are read as `ltrain build` reads them.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.frameworks.model import Model, ReceivedRequest
from tests.otlp import insert_otlp

from ltrain_collector.store import Store
from ltrain_transforms.calls import calls, executions
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read_spans
from ltrain_transforms.states import states

ROOT = Path(__file__).parents[2]
AGENTS = Path(__file__).parent / "agents"
ROLLOUT = "rollout1"
CONTENT_OFF = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "NO_CONTENT"}
SECONDS = 180
"""Timeout of an agent; crewai imports for 20 of these seconds on two busy cores."""


@dataclass(frozen=True)
class RunResult:
    """The result of one agent's run, with its spans."""

    exit_code: int
    stdout: str
    stderr: str
    model_requests: list[ReceivedRequest]
    """Requests to the model server, and whether each was planned to fail."""
    spans: pl.DataFrame
    """The table `SPANS`."""
    calls: pl.DataFrame
    executions: pl.DataFrame
    states: pl.DataFrame
    call_states: pl.DataFrame
    """The table `SEEN`: what each call read and did."""
    otlp_requests: list[bytes]
    """The exported OTLP requests."""
    port: int
    """Port of the model server."""

    def calls_of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the calls of a kind in their order."""
        return self.calls.filter(pl.col("kind") == kind).sort("start", "call_id").to_dicts()


class _Sink:
    """An OTLP/HTTP collector that stores the requests."""

    def __init__(self) -> None:
        self.otlp_requests: list[bytes] = []
        stored = self.otlp_requests

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                zipped = self.headers.get("Content-Encoding") == "gzip"
                if self.path == "/v1/traces":
                    stored.append(gzip.decompress(body) if zipped else body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture(scope="session")
def session_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(f"chdb://{tmp_path_factory.mktemp('store')}/store") as session_store:
        session_store.migrate()
        yield session_store


@pytest.fixture
def store(session_store: Store) -> Store:
    """Return an empty store; a session has one, because opening takes longer than reading."""
    for table in ("otel_traces", "otel_trace_executions"):
        session_store.command(f"TRUNCATE TABLE otel.{table}")
    return session_store


Run = Callable[..., RunResult]


@pytest.fixture
def model() -> Iterator[Model]:
    """Start the model server."""
    server = Model()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def run(store: Store, model: Model, tmp_path: Path) -> Iterator[Run]:
    """Run `agents/NAME.py ARGS` in an environment, and read its spans."""
    sink = _Sink()

    def run_agent(environment: str, name: str, *args: str, **environ: str) -> RunResult:
        folder = ROOT / (".venv" if environment == "main" else f".venv-{environment}") / "bin"
        if not (folder / "opentelemetry-instrument").exists():
            target = "setup-examples" if environment == "examples" else "test-frameworks"
            pytest.fail(f"{folder.parent.name} is missing: make {target} makes it")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "LTRAIN_"))}
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url,
            "LTRAIN_HOME": str(tmp_path / "home"),
            "LTRAIN_RUN_ID": "frameworks",
            "LTRAIN_TASK_ID": "task1",
            "LTRAIN_ROLLOUT_ID": ROLLOUT,
            "LTRAIN_ATTEMPT_ID": "1",
            "LTRAIN_MODE": "train",
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": "none",
            "LTRAIN_POLICY_URLS": model.url,
            "LTRAIN_POLICY_VERSION": "0",
        }
        completed = subprocess.run(
            [folder / "opentelemetry-instrument", folder / "python", AGENTS / f"{name}.py", *args],
            env=inherited | variables | environ,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        for request in sink.otlp_requests:
            insert_otlp(store, request)
        return _read(store, completed, model, sink.otlp_requests)

    yield run_agent
    sink.stop()


def _read(
    store: Store,
    completed: subprocess.CompletedProcess[str],
    model: Model,
    otlp_requests: list[bytes],
) -> RunResult:
    spans, unresolved = read_spans(store, Source(), Selection())
    calls_frame, unreadable = calls(spans)
    assert (unresolved.to_dicts(), unreadable.to_dicts()) == ([], [])
    states_frame, call_states, _ = states(calls_frame)
    return RunResult(
        completed.returncode,
        completed.stdout,
        completed.stderr,
        model.model_requests,
        spans,
        calls_frame,
        executions(spans, calls_frame),
        states_frame,
        call_states,
        otlp_requests,
        model.port,
    )
