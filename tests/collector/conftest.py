import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.otlp import open_empty_store

from ltrain_collector.access import sign_owner, store_secret
from ltrain_collector.store import Store

NOON = 1_790_000_000_000_000_000
"""Nanoseconds; a day in 2026."""

RequestOf = Callable[..., bytes]


@pytest.fixture(scope="session")
def request_of() -> RequestOf:
    """Make a serialized OTLP request of spans from pairs of trace and span numbers."""

    def make(
        *ids: tuple[int, int],
        name: str = "chat",
        scope: str = "test",
        start: int = NOON,
        seconds: float = 1.0,
        parent: int = 0,
        **attributes: str,
    ) -> bytes:
        request = ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        service = resource.resource.attributes.add(key="service.name")
        service.value.string_value = "agent"
        scoped = resource.scope_spans.add()
        scoped.scope.name = scope
        for trace, number in ids:
            span = scoped.spans.add(name=name, start_time_unix_nano=start)
            span.end_time_unix_nano = start + int(seconds * 1e9)
            span.trace_id = trace.to_bytes(16, "big")
            span.span_id = number.to_bytes(8, "big")
            if parent:
                span.parent_span_id = parent.to_bytes(8, "big")
            for key, value in attributes.items():
                span.attributes.add(key=key.replace("__", ".")).value.string_value = value
        return bytes(request.SerializeToString())

    return make


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Store]:
    """A store in a new folder."""
    with open_empty_store(tmp_path / "store") as store:
        yield store


@dataclass
class Up:
    """A running `ltrain up`."""

    directory: Path
    process: subprocess.Popen[str]
    otlp: int
    grpc: int
    sql: int

    @property
    def dsn(self) -> str:
        return f"http://127.0.0.1:{self.sql}"

    @property
    def key(self) -> str:
        """An owner's key, as ltrain's own commands sign it."""
        return sign_owner(store_secret(self.directory), 3600)

    @property
    def owned(self) -> str:
        """The address with the owner's key, for changes of the store."""
        return f"http://owner:{self.key}@127.0.0.1:{self.sql}"

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Return the exit code when the process ends."""
        code = self.process.wait(120)
        assert self.process.stdout
        self.process.stdout.close()
        return code


StartUp = Callable[..., Up]


def start_up(
    directory: Path,
    otlp: int = 0,
    sql: int = 0,
    *more: str,
    grpc: int = 0,
    within: tuple[str, ...] = (),
) -> Up:
    """Start `ltrain up` and wait for its line; `within` is a command that runs it."""
    argv = [*within, sys.executable, "-m", "ltrain", "up", "--dir", str(directory), *more]
    process = subprocess.Popen(
        [*argv, "--otlp-port", str(otlp), "--grpc-port", str(grpc), "--http-port", str(sql)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )
    assert process.stdout
    line = _line(process.stdout)
    if not line.startswith("ltrain: store ready"):
        process.kill()
        process.communicate()
        pytest.fail(line)
    ports = [int(port) for port in re.findall(r"[\d.]+\.\d+:(\d+)", line)]
    return Up(directory, process, *ports)


def _line(stream: IO[str], seconds: float = 120.0) -> str:
    poll = select.poll()  # chDB keeps descriptors: stores opened before may have taken the low ones
    poll.register(stream, select.POLLIN)
    return stream.readline() if poll.poll(seconds * 1000) else "nothing was printed"


@pytest.fixture
def start() -> Iterator[StartUp]:
    """Start servers that stop at the end of the test."""
    started: list[Up] = []

    def begin(directory: Path, otlp: int = 0, sql: int = 0, *more: str, **how: Any) -> Up:
        started.append(start_up(directory, otlp, sql, *more, **how))
        return started[-1]

    yield begin
    for up in started:
        if up.process.poll() is None:
            up.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def run_up() -> Callable[..., Up]:
    """Start a server that the test stops itself."""
    return start_up


@pytest.fixture(scope="package")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One server for the tests that only add rows."""
    running = start_up(tmp_path_factory.mktemp("up") / "store")
    yield running
    assert running.stop() == 0


@pytest.fixture(params=["folder", "server"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store in a folder, then one behind a server: each test runs on both."""
    if request.param == "folder":
        yield request.getfixturevalue("folder")
        return
    with Store.open(request.getfixturevalue("up").owned) as opened:
        yield opened
