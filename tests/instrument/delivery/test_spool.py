from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ltrain_instrument.delivery.disk_quota import REMEASURE_SECONDS
from ltrain_instrument.delivery.forwarding import MAX_BATCH_BYTES
from ltrain_instrument.delivery.otlp_client import Authorization, Sender, traces_url
from ltrain_instrument.delivery.segment import Segment
from ltrain_instrument.delivery.spool import Spool, send_leftover_spans
from ltrain_instrument.errors import SpoolFull

if TYPE_CHECKING:
    from tests.instrument.conftest import Sink


def request(name: str, size: int = 0) -> bytes:
    message = ExportTraceServiceRequest()
    span = message.resource_spans.add().scope_spans.add().spans.add()
    span.name, span.trace_id, span.span_id = name, b"t" * 16, b"s" * 8
    pair = span.attributes.add()
    pair.key, pair.value.string_value = "text", os.urandom(size // 2).hex()
    serialised: bytes = message.SerializeToString()
    return serialised


def names(sink: Sink) -> Counter[str]:
    return Counter(span.name for span in sink.spans)


def test_requests_arrive_merged_and_leave_the_disk(sink: Sink, tmp_path: Path) -> None:
    spool = Spool(tmp_path, sink.url)

    def write(part: int) -> None:
        for number in range(100):
            spool.append(request(f"{part}.{number}"))

    writers = [threading.Thread(target=write, args=(part,)) for part in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert spool.flush(60)
    assert names(sink) == Counter(f"{part}.{number}" for part in range(8) for number in range(100))
    assert len(sink.requests) < 400
    assert list(tmp_path.iterdir()) == []
    spool.close()


def test_a_flush_does_not_wait_for_requests_that_follow_it(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = type(sink).respond

    def respond(self: Sink, path: str, body: bytes) -> tuple[int, str, bytes]:
        spool.append(request("a later one"))  # while the collector answers, without end
        return original(self, path, body)

    monkeypatch.setattr(type(sink), "respond", respond)
    spool = Spool(tmp_path, sink.url, batch_delay=0.2)
    spool.append(request("a"))
    assert spool.flush(60)
    assert names(sink)["a"] == 1
    monkeypatch.undo()
    spool.close()


def test_a_large_backlog_is_sent_in_bounded_requests(sink: Sink, tmp_path: Path) -> None:
    sink.stop()
    spool = Spool(tmp_path, sink.url)
    for number in range(30):
        spool.append(request(str(number), 1 << 20))
    spool.append(request("large", MAX_BATCH_BYTES + 10))
    assert not spool.flush(0.1)
    sink.start()
    assert spool.flush(60)
    spool.close()
    assert names(sink) == Counter([*map(str, range(30)), "large"])
    large = [len(body) for _, _, body in sink.requests if len(body) > MAX_BATCH_BYTES]
    assert len(large) == 1
    assert len(sink.requests) >= 5


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_request_to_a_busy_collector_is_retried(sink: Sink, tmp_path: Path, status: int) -> None:
    sink.status = status
    spool = Spool(tmp_path, sink.url)
    spool.append(request("a"))
    assert not spool.flush(0.3)
    assert spool.collector_away
    assert len(sink.requests) >= 2
    sink.status = 200
    assert spool.flush(60)
    assert not spool.collector_away
    spool.close()
    assert names(sink) == {"a": 1}
    assert spool.refused == 0


@pytest.mark.parametrize(("header", "longest", "requests"), [("600", 60.0, 1), ("600", 0.3, 4)])
def test_a_collector_that_names_seconds_is_left_alone_as_long_within_bounds(
    sink: Sink,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    header: str,
    longest: float,
    requests: int,
) -> None:
    monkeypatch.setattr("ltrain_instrument.delivery.forwarding.MAX_RETRY_AFTER", longest)
    sink.status, sink.retry_after = 429, header
    spool = Spool(tmp_path, sink.url)
    spool.append(request("a"))
    assert not spool.flush(1.1)
    assert 1 <= len(sink.requests) <= requests
    assert spool.last_result.retry_after == 600
    assert not spool.flush(60, wait_if_away=False)  # a pause holds up no exit
    sink.status = 200
    if longest < 1:
        assert spool.flush(60)
    spool.close()
    assert names(sink) == ({"a": 1} if longest < 1 else {})


def test_a_refused_request_is_stored_and_the_others_are_sent(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = type(sink).respond

    def respond(self: Sink, path: str, body: bytes) -> tuple[int, str, bytes]:
        if b"poison" in body:
            return 400, "text/plain", b"no poison"
        return original(self, path, body)

    monkeypatch.setattr(type(sink), "respond", respond)
    spool = Spool(tmp_path, sink.url)
    for name in ("a", "poison-1", "b", "c", "poison-2", "d"):
        spool.append(request(name))
    assert spool.flush(60)
    assert names(sink) == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert spool.refused == 2
    assert len(caplog.records) == 1
    assert "400 no poison" in caplog.text
    monkeypatch.undo()
    for segment in (tmp_path / "refused").iterdir():
        segment.rename(tmp_path / segment.name)
    assert spool.flush(60)
    spool.close()
    assert names(sink)["poison-1"] == names(sink)["poison-2"] == 1


def test_a_spool_has_a_limit_and_room_again_after_sending(sink: Sink, tmp_path: Path) -> None:
    sink.stop()
    spool = Spool(tmp_path, sink.url, limit=1)
    other = Spool(tmp_path, sink.url, limit=1)
    for number in range(4):
        (spool if number % 2 else other).append(request(str(number), 200_000))
    with pytest.raises(SpoolFull, match=r"the 1 MiB that LTRAIN_SPOOL_LIMIT allows"):
        for _ in range(6):
            spool.append(request("beyond", 200_000))
    # processes do not communicate: each may exceed the limit
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 << 20
    sink.start()
    assert spool.flush(60)
    assert other.flush(60)
    time.sleep(REMEASURE_SECONDS)
    spool.append(request("again"))
    assert spool.flush(60)
    for each in (spool, other):
        each.close()
    assert names(sink).keys() - {"beyond"} == {"0", "1", "2", "3", "again"}


def test_refused_requests_have_a_limit_and_are_counted(
    sink: Sink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink.status = 400
    (tmp_path / "refused").mkdir()
    (tmp_path / "refused" / "older").write_bytes(bytes(1 << 20))
    spool = Spool(tmp_path, sink.url, limit=1)
    for number in range(3):
        spool.append(request(str(number)))
    assert spool.flush(60)
    spool.close()
    assert (spool.refused, spool.dropped) == (3, 3)
    assert [path.name for path in (tmp_path / "refused").iterdir()] == ["older"]
    assert caplog.text.count("Spans were refused and dropped") == 1


@pytest.mark.parametrize("status", [301, 401, 403, 404])
def test_requests_wait_while_a_user_can_fix_the_endpoint(
    sink: Sink, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    sink.status = status
    spool = Spool(tmp_path, sink.url)
    for number in range(3):
        spool.append(request(str(number)))
        time.sleep(0.1)
    assert not spool.flush(1)
    assert spool.refused == 0
    assert caplog.text.count("Set OTEL_EXPORTER_OTLP_") == 1
    sink.status = 200
    assert spool.flush(60)
    spool.close()
    assert names(sink) == {"0": 1, "1": 1, "2": 1}


DYING = """
import os, signal, sys
from pathlib import Path
from ltrain_instrument.delivery.spool import Spool
spool = Spool(Path(sys.argv[1]), sys.argv[2])
for number in range(50):
    spool.append(bytes.fromhex(sys.argv[3]))
if sys.argv[4] == "fork" and os.fork() == 0:
    os.close(1)
    __import__("time").sleep(3)
    os._exit(0)
print("ready", flush=True)
sys.stdin.read(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("with_child", ["alone", "fork"])
def test_requests_of_a_killed_process_are_sent_by_another(
    sink: Sink, tmp_path: Path, with_child: str
) -> None:
    sink.stop()
    dying = subprocess.Popen(
        [sys.executable, "-c", DYING, tmp_path, sink.url, request("left").hex(), with_child],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert dying.stdout is not None
    assert dying.stdout.readline() == b"ready\n"
    sink.start()
    sink.status = 503
    spool = Spool(tmp_path, sink.url)
    time.sleep(0.2)
    assert spool.flush(1)  # the owner lives, so there is nothing to send
    dying.communicate(b"x")
    sink.status = 200
    assert spool.flush(60)
    spool.close()
    assert names(sink) == {"left": 50}
    assert list(tmp_path.iterdir()) == []


def write_orphans(folder: Path, *spans: str) -> None:
    """Write each span to a file of a process that is dead."""
    for span in spans:
        segment = Segment.create(folder)
        segment.append(request(span))
        segment.release()


def test_orphans_are_sent_by_a_busy_process(sink: Sink, tmp_path: Path) -> None:
    spool = Spool(tmp_path, sink.url, rescan_interval=0.2)
    assert spool.flush(60)
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.001):
            spool.append(request("own"))

    busy = threading.Thread(target=write)
    busy.start()
    try:
        write_orphans(tmp_path, "left", "left", "left")
        sink.wait("left", 3)
    finally:
        stop.set()
        busy.join()
    assert spool.flush(60)
    spool.close()


def test_one_search_finds_all_orphans(sink: Sink, tmp_path: Path) -> None:
    spool = Spool(tmp_path, sink.url, rescan_interval=2.0)
    assert spool.flush(60)
    write_orphans(tmp_path, *map(str, range(50)))
    for number in range(50):
        sink.wait(str(number), seconds=20)
    spool.close()


def test_a_segment_has_one_owner_at_a_time(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path)
    for text in (b"first", b"second", b"third"):
        segment.append(text)
    assert Segment.adopt(segment.path) is None
    segment.release()
    adopted = Segment.adopt(segment.path)
    assert adopted is not None
    batches = [[record.request for record in batch] for batch in adopted.batches(6)]
    assert batches == [[b"first"], [b"second"], [b"third"]]
    adopted.remove()
    assert list(tmp_path.iterdir()) == []


def test_an_append_after_close_waits_on_disk(sink: Sink, tmp_path: Path) -> None:
    spool = Spool(tmp_path, sink.url)
    spool.close()
    spool.append(request("late"))
    next_spool = Spool(tmp_path, sink.url)
    assert next_spool.flush(60)
    next_spool.close()
    assert names(sink) == {"late": 1}


@pytest.mark.parametrize("refusing", [b"poison", b""])
def test_acknowledged_requests_are_never_sent_again(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusing: bytes
) -> None:
    original = type(sink).respond
    accepted: list[str] = []

    def respond(self: Sink, path: str, body: bytes) -> tuple[int, str, bytes]:
        if refusing and refusing in body:
            return 400, "text/plain", b"no poison"
        if accepted:
            return 503, "text/plain", b"tired"
        accepted.append(path)
        return original(self, path, body)

    monkeypatch.setattr(type(sink), "respond", respond)
    spool = Spool(tmp_path, sink.url, batch_delay=60)
    each = ("a", "b", "c", "poison", "d", "e")
    for name in each:
        spool.append(request(name, MAX_BATCH_BYTES // 3))
    assert not spool.flush(60, wait_if_away=False)
    spool.close()
    assert accepted
    sent = set(names(sink))
    assert 0 < len(sent) < 5
    monkeypatch.undo()
    next_spool = Spool(tmp_path, sink.url)
    assert next_spool.flush(60)
    next_spool.close()
    assert names(sink) == dict.fromkeys(each, 1)
    assert (spool.damaged, next_spool.damaged) == (0, 0)


def test_without_a_disk_requests_are_held_in_memory(sink: Sink, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    sink.stop()
    spool = Spool(tmp_path / "file", sink.url, memory_limit=1 << 20)
    spool.append(request("a", 400_000))
    spool.append(request("b", 400_000))
    with pytest.raises(OSError, match="Not a directory"):
        spool.append(request("c", 400_000))
    assert spool.held_in_memory == 2
    sink.start()
    assert spool.flush(60)
    assert spool.held_in_memory == 0
    spool.append(request("d", 400_000))
    assert spool.flush(60)
    spool.close()
    assert names(sink) == {"a": 1, "b": 1, "d": 1}


def test_requests_of_a_dead_process_are_sent_with_its_key(sink: Sink, tmp_path: Path) -> None:
    assert send_leftover_spans(tmp_path / "none", sink.url, timeout=60).status == "accepted"
    segment = Segment.create(tmp_path)
    segment.append(request("left"))
    segment.release()
    sink.status, sink.retry_after = 503, "7"
    result = send_leftover_spans(tmp_path, sink.url, timeout=60)
    assert (result.status, result.retry_after) == ("retry", 7.0)
    sink.status = 200
    key = Authorization(lambda: "Bearer its")
    result = send_leftover_spans(tmp_path, sink.url, timeout=60, authorization=key)
    assert result.status == "accepted"
    assert names(sink) == {"left": 1}
    assert sink.requests[-1][1]["authorization"] == "Bearer its"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_stays_in_the_folder_counts_as_unsent(
    sink: Sink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "damaged").write_text("in the way")
    (tmp_path / "bad.otlp").write_bytes(b"garbage")
    write_orphans(tmp_path, "left")
    assert send_leftover_spans(tmp_path, sink.url, timeout=60).status == "refused"
    assert names(sink) == {"left": 1}
    assert "It was not moved" in caplog.text


def test_the_url_comes_from_opentelemetrys_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    assert traces_url() == "http://127.0.0.1:4318/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://host/base/")
    assert traces_url() == "https://host/base/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other/exact")
    assert traces_url() == "http://other/exact"
    assert traces_url("http://given:1") == "http://given:1/v1/traces"


def test_headers_are_sent_and_the_sender_reconnects(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x,tenant=7")
    spool = Spool(tmp_path, sink.url)
    spool.append(request("a"))
    assert spool.flush(60)
    sink.stop()
    sink.start()
    spool.append(request("b"))
    assert spool.flush(60)
    spool.close()
    assert names(sink) == {"a": 1, "b": 1}
    _, headers, _ = sink.requests[0]
    assert (headers["authorization"], headers["tenant"]) == ("Bearer x", "7")
    assert "content-encoding" not in headers  # requests to this machine are not compressed


def test_requests_are_compressed_if_configured(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    spool = Spool(tmp_path, sink.url)
    spool.append(request("a"))
    assert spool.flush(60)
    spool.close()
    assert names(sink) == {"a": 1}
    _, headers, _ = sink.requests[0]
    assert headers["content-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("url", "compression", "compressed"),
    [
        ("http://127.0.0.1:4318", "", False),
        ("http://[::1]:4318", "", False),
        ("http://localhost:4318", "", False),
        ("http://collector:4318", "", True),
        ("http://10.0.0.2:4318", "", True),
        ("http://collector:4318", "none", False),
        ("http://127.0.0.1:4318", "gzip", True),
    ],
)
def test_requests_to_other_machines_are_compressed(
    url: str, compression: str, compressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    assert Sender(lambda: url, timeout=1.0).compressed is compressed
