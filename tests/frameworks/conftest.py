"""Agents of real frameworks, run as a user runs them: unchanged, under `opentelemetry-instrument`.

Each runs in the environment that has its framework, against a model server of ours; its spans go to
an OTLP sink, from there into a real store, and are read as `ltrain build` reads them.
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
from tests.frameworks.model import Asked, Model

from ltrain_collector.store import Store
from ltrain_transforms.calls import calls
from ltrain_transforms.executions import executions
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read_spans
from ltrain_transforms.states import states

ROOT = Path(__file__).parents[2]
AGENTS = Path(__file__).parent / "agents"
ROLLOUT = "rollout1"
SECONDS = 180
"""That an agent may take; crewai imports for 20 of them on two busy cores."""


@dataclass(frozen=True)
class Ran:
    """What became of one agent, and of its spans."""

    code: int
    out: str
    err: str
    asked: list[Asked]
    """What the model server was asked, and whether that was planned to fail."""
    spans: pl.DataFrame
    """`SPANS`."""
    calls: pl.DataFrame
    executions: pl.DataFrame
    states: pl.DataFrame
    seen: pl.DataFrame
    """`SEEN`: what each call read and did."""
    requests: list[bytes]
    """What was exported, as OTLP."""
    port: int
    """The model server's."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Give the calls of a kind in their order."""
        return self.calls.filter(pl.col("kind") == kind).sort("start", "call_id").to_dicts()


class _Sink:
    """An OTLP/HTTP collector that keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        kept = self.requests

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                zipped = self.headers.get("Content-Encoding") == "gzip"
                if self.path == "/v1/traces":
                    kept.append(gzip.decompress(body) if zipped else body)
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
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(f"chdb://{tmp_path_factory.mktemp('store')}/store") as opened:
        opened.migrate()
        yield opened


@pytest.fixture
def store(opened: Store) -> Store:
    """An empty store; one a session, because opening costs more than reading."""
    for table in ("otel_traces", "otel_trace_executions"):
        opened.command(f"TRUNCATE TABLE otel.{table}")
    return opened


Run = Callable[..., Ran]


@pytest.fixture
def run(store: Store, tmp_path: Path) -> Iterator[Run]:
    """Run `agents/NAME.py ARGS` in an environment, and read what it left."""
    sink, model = _Sink(), Model()
    model.start()

    def go(environment: str, name: str, *args: str, **environ: str) -> Ran:
        folder = ROOT / f".venv-{environment}" / "bin"
        if not (folder / "opentelemetry-instrument").exists():
            pytest.fail(f"{folder.parent.name} is missing: make test-frameworks makes it")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "LTRAIN_"))}
        given = {
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
        done = subprocess.run(
            [folder / "opentelemetry-instrument", folder / "python", AGENTS / f"{name}.py", *args],
            env=kept | given | environ,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        for request in sink.requests:
            store.insert_otlp(request)
        return _read(store, done, model, sink.requests)

    yield go
    sink.stop()
    model.stop()


def _read(
    store: Store, done: subprocess.CompletedProcess[str], model: Model, requests: list[bytes]
) -> Ran:
    spans, unresolved = read_spans(store, Source(), Selection())
    found, unreadable = calls(spans)
    assert (unresolved.to_dicts(), unreadable.to_dicts()) == ([], [])
    written, seen, _ = states(found)
    return Ran(
        done.returncode,
        done.stdout,
        done.stderr,
        model.asked,
        spans,
        found,
        executions(spans, found),
        written,
        seen,
        requests,
        model.port,
    )
