"""`ltrain import` of a server: interrupted and gone on with, counted, and refused."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.collector.sources.servers.serving import Answer, Fault, Request, Served, serving
from tests.collector.sources.servers.test_apis import START, jaeger, jaeger_trace
from tests.otlp import open_empty_store

from ltrain_collector.errors import BadSource, BadTime, SourceFailed
from ltrain_collector.sources import Window, open_server
from ltrain_collector.store import Store
from ltrain_collector.transfer import ImportOptions, run_import
from ltrain_collector.transfer.from_server import import_server
from ltrain_collector.transfer.importing import ImportCounts

HOUR = 3600 * 1_000_000_000
MONTH = Window(since=START - HOUR, until=START + 31 * 24 * HOUR)
SPANS = "SELECT TraceId, SpanId, SpanName FROM otel.spans ORDER BY TraceId, SpanId"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_empty_store(tmp_path / "store") as opened:
        yield opened


def spread(count: int) -> Answer:
    """Return a Jaeger whose traces are half a day apart, so that each slice has a few."""
    traces = []
    for number in range(1, count + 1):
        trace = jaeger_trace(number)
        for span in trace["spans"]:
            span["startTime"] += number * 43_199_000_000
        traces.append(trace)

    def answer(request: Request) -> Any:
        if request.path == "services":
            return {"data": ["weather"]}
        start, end = int(request.one("start")), int(request.one("end"))
        return {"data": [t for t in traces if start <= t["spans"][0]["startTime"] <= end]}

    return answer


def imported(store: Store, served: Served, limit: int | None = None) -> tuple[int, int]:
    """Return how many traces are stored, and how many an earlier try stored."""
    address, server = open_server(f"jaeger://127.0.0.1:{served.port}/weather")
    window = Window(MONTH.since, MONTH.until, limit)
    counts, traces, before = import_server(store, str(address), server, window, lambda _: None)
    assert isinstance(counts, ImportCounts)
    return traces, before


def test_ten_interruptions(store: Store, home: Path) -> None:
    with serving(spread(60), "/api/") as served:
        interruptions = 0
        for _ in range(60):
            served.faults = {len(served.requests) + 2: Fault()}
            try:
                traces, before = imported(store, served)
                break
            except SourceFailed:
                interruptions += 1
        assert interruptions >= 10
        assert (traces, before > 0) == (60, True)
        ends = [each.one("end") for each in served.requests if each.path == "traces"]
        assert len(set(ends)) == len(ends) - interruptions  # no page is read twice
        assert list((home / "imports").iterdir()) == []
        interrupted = store.query(SPANS).rows()
        store.command("TRUNCATE TABLE otel.otel_traces")
        served.faults = {}
        assert imported(store, served) == (60, 0)
        assert store.query(SPANS).rows() == interrupted
        assert len(interrupted) == 120


def test_kill_and_go_on(tmp_path: Path, home: Path) -> None:
    store = f"chdb://{tmp_path / 'killed'}"

    def slow(request: Request) -> Any:
        time.sleep(0.05)
        return spread(60)(request)

    with serving(slow, "/api/") as served:
        options = ["--since", "2026-03-04T09:00:00", "--until", "2026-04-04"]
        source = f"jaeger://127.0.0.1:{served.port}/weather"
        command = [sys.executable, "-m", "ltrain", "import", source, "--store", store, *options]
        environment = {**os.environ, "LTRAIN_HOME": str(home)}
        for _ in range(2):
            number = len(served.requests)
            process = subprocess.Popen(command, env=environment)
            while len(served.requests) < number + 6:
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            process.wait()
        ended = subprocess.run(
            [*command, "--json"], env=environment, check=True, capture_output=True, text=True
        )
        report = json.loads(ended.stdout)
        assert report["traces"] == 60
        assert 0 < report["stored_by_an_earlier_try"] < 60
    with Store.open(store) as opened:
        assert opened.query(SPANS).height == 120


def test_a_limit_that_an_interruption_divides(store: Store) -> None:
    with serving(spread(60), "/api/") as served:
        served.faults = {9: Fault()}
        with pytest.raises(SourceFailed):
            imported(store, served, limit=20)
        traces, before = imported(store, served, limit=20)
        assert (traces, before > 0) == (20, True)
        assert store.query(SPANS).height == 40


def test_records_of_another_form_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = jaeger_trace(2)
    del wrong["spans"][1]["operationName"]

    def answer(request: Request) -> Any:
        if request.path == "services":
            return {"data": ["weather"]}
        start, end = int(request.one("start")), int(request.one("end"))
        inside = start <= START // 1000 + 2_000_000 < end
        return {"data": [jaeger_trace(1), wrong] if inside else []}

    with serving(answer, "/api/") as served:
        source = f"jaeger://127.0.0.1:{served.port}/weather"
        options = ImportOptions("2026-03-04", "2026-03-05")
        assert not run_import(source, f"chdb://{tmp_path / 'store'}", options, True)
    report = json.loads(capsys.readouterr().out)
    assert (report["traces"], report["stored"], report["unreadable"]) == (2, 2, 1)
    [place] = report["where_unreadable"]
    assert place.endswith("trace 2: it has another form than expected: KeyError('operationName')")


def test_a_dry_run_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(jaeger(3), "/api/") as served:
        source = f"jaeger://127.0.0.1:{served.port}/weather"
        options = ImportOptions("2026-03-04", "2026-03-05", dry_run=True)
        assert run_import(source, "chdb:///does/not/exist", options, True)
    assert json.loads(capsys.readouterr().out) == {
        "spans": 6,
        "traces": 3,
        "traces_with_token_ids": 0,
        "kinds": {"chat": 3, "execute_tool": 3},
        "agents": {},
        "scores": {},
    }


def test_a_dry_run_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("tests/fixtures/reward__otel-and-openinference.otlp.json")
    assert run_import(str(file), None, ImportOptions(dry_run=True), True)
    report = json.loads(capsys.readouterr().out)
    assert report["spans"] > 0
    assert report["scores"]


def test_options_of_the_other_kind(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match="--since, --until and --limit are for servers"):
        run_import(str(tmp_path), None, ImportOptions(limit=1), False)
    with pytest.raises(BadSource, match="--trusted is for exports of your own store"):
        run_import("phoenix://127.0.0.1:1/p", None, ImportOptions(trusted=True), False)
    with pytest.raises(BadTime, match="'soon' is no time"):
        _ = ImportOptions(since="soon").window


def test_days_before_now() -> None:
    since = ImportOptions(since="7d").window.since
    assert since is not None
    assert abs(time.time_ns() - since - 7 * 24 * HOUR) < HOUR
