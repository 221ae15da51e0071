import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.otlp import open_empty_store
from tests.up import Up, start_up

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


StartUp = Callable[..., Up]


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
