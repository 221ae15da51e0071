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

from ltrain_instrument.allowance import REMEASURE_SECONDS
from ltrain_instrument.delivery import Authorization, Sender, traces_url
from ltrain_instrument.errors import SpoolFull
from ltrain_instrument.forwarding import MAX_BATCH_BYTES
from ltrain_instrument.leftovers import send_leftover_spans
from ltrain_instrument.segment import Segment
from ltrain_instrument.spool import Spool

if TYPE_CHECKING:
    from tests.instrument.conftest import Sink


def request(name: str, weight: int = 0) -> bytes:
    message = ExportTraceServiceRequest()
    span = message.resource_spans.add().scope_spans.add().spans.add()
    span.name, span.trace_id, span.span_id = name, b"t" * 16, b"s" * 8
    pair = span.attributes.add()
    pair.key, pair.value.string_value = "text", os.urandom(weight // 2).hex()
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


def test_a_large_backlog_goes_in_bounded_requests(sink: Sink, tmp_path: Path) -> None:
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
def test_a_busy_collector_is_asked_again(sink: Sink, tmp_path: Path, status: int) -> None:
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


def test_a_refused_request_is_kept_aside_and_its_neighbours_pass(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer = type(sink).respond

    def picky(self: Sink, path: str, body: bytes) -> tuple[int, str, bytes]:
        if b"poison" in body:
            return 400, "text/plain", b"no poison"
        return answer(self, path, body)

    monkeypatch.setattr(type(sink), "respond", picky)
    spool = Spool(tmp_path, sink.url)
    for name in ("a", "poison-1", "b", "c", "poison-2", "d"):
        spool.append(request(name))
    assert spool.flush(60)
    assert names(sink) == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert spool.refused == 2
    assert len(caplog.records) == 1
    assert "400 no poison" in caplog.text
    monkeypatch.undo()
    for kept in (tmp_path / "refused").iterdir():
        kept.rename(tmp_path / kept.name)
    assert spool.flush(60)
    spool.close()
    assert names(sink)["poison-1"] == names(sink)["poison-2"] == 1


def test_a_spool_has_a_bound_and_room_again_when_it_was_sent(sink: Sink, tmp_path: Path) -> None:
    sink.stop()
    spool = Spool(tmp_path, sink.url, limit=1)
    other = Spool(tmp_path, sink.url, limit=1)
    for number in range(4):
        (spool if number % 2 else other).append(request(str(number), 200_000))
    with pytest.raises(SpoolFull, match=r"the 1 MiB that LTRAIN_SPOOL_LIMIT allows"):
        for _ in range(6):
            spool.append(request("beyond", 200_000))
    # processes do not talk: each may overdraw
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


def test_refused_requests_have_a_bound_and_are_counted(
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
def test_an_endpoint_that_may_be_mended_keeps_its_requests(
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
from ltrain_instrument.spool import Spool
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
def test_what_a_killed_process_left_is_forwarded_by_another(
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
    assert spool.flush(1)  # the owner lives: there is nothing for others
    dying.communicate(b"x")
    sink.status = 200
    assert spool.flush(60)
    spool.close()
    assert names(sink) == {"left": 50}
    assert list(tmp_path.iterdir()) == []


def leave(folder: Path, *spans: str) -> None:
    """Leave each span in the file of a process that is gone."""
    for span in spans:
        left = Segment.create(folder)
        left.append(request(span))
        left.release()


def test_what_dead_processes_left_passes_beside_a_busy_process(sink: Sink, tmp_path: Path) -> None:
    spool = Spool(tmp_path, sink.url, rescan_interval=0.2)
    assert spool.flush(60)
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.001):
            spool.append(request("own"))

    busy = threading.Thread(target=write)
    busy.start()
    try:
        leave(tmp_path, "left", "left", "left")
        sink.wait("left", 3)
    finally:
        stop.set()
        busy.join()
    assert spool.flush(60)
    spool.close()


def test_one_look_finds_all_that_dead_processes_left(sink: Sink, tmp_path: Path) -> None:
    spool = Spool(tmp_path, sink.url, rescan_interval=2.0)
    assert spool.flush(60)
    leave(tmp_path, *map(str, range(50)))
    for number in range(50):
        sink.wait(str(number), seconds=20)
    spool.close()


def test_one_owner_at_a_time_reads_a_segment(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path)
    for text in (b"first", b"second", b"third"):
        segment.append(text)
    assert Segment.adopt(segment.path) is None
    segment.release()
    kept = Segment.adopt(segment.path)
    assert kept is not None
    read = [[record.request for record in batch] for batch in kept.batches(6)]
    assert read == [[b"first"], [b"second"], [b"third"]]
    kept.remove()
    assert list(tmp_path.iterdir()) == []


def test_an_append_after_close_waits_on_disk(sink: Sink, tmp_path: Path) -> None:
    spool = Spool(tmp_path, sink.url)
    spool.close()
    spool.append(request("late"))
    later = Spool(tmp_path, sink.url)
    assert later.flush(60)
    later.close()
    assert names(sink) == {"late": 1}


@pytest.mark.parametrize("refusing", [b"poison", b""])
def test_what_was_acknowledged_is_never_sent_again(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusing: bytes
) -> None:
    answer = type(sink).respond
    answered: list[str] = []

    def tiring(self: Sink, path: str, body: bytes) -> tuple[int, str, bytes]:
        if refusing and refusing in body:
            return 400, "text/plain", b"no poison"
        if answered:
            return 503, "text/plain", b"tired"
        answered.append(path)
        return answer(self, path, body)

    monkeypatch.setattr(type(sink), "respond", tiring)
    spool = Spool(tmp_path, sink.url, batch_delay=60)
    each = ("a", "b", "c", "poison", "d", "e")
    for name in each:
        spool.append(request(name, MAX_BATCH_BYTES // 3))
    assert not spool.flush(60, wait_if_away=False)
    spool.close()
    assert answered
    sent = set(names(sink))
    assert 0 < len(sent) < 5
    monkeypatch.undo()
    later = Spool(tmp_path, sink.url)
    assert later.flush(60)
    later.close()
    assert names(sink) == dict.fromkeys(each, 1)
    assert (spool.damaged, later.damaged) == (0, 0)


def test_a_disk_that_takes_nothing_is_done_without_while_memory_lasts(
    sink: Sink, tmp_path: Path
) -> None:
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


def test_what_a_dead_process_left_is_sent_with_its_own_key(sink: Sink, tmp_path: Path) -> None:
    assert send_leftover_spans(tmp_path / "none", sink.url, timeout=60)
    left = Segment.create(tmp_path)
    left.append(request("left"))
    left.release()
    sink.status = 503
    assert not send_leftover_spans(tmp_path, sink.url, timeout=60)
    sink.status = 200
    key = Authorization(lambda: "Bearer its")
    assert send_leftover_spans(tmp_path, sink.url, timeout=60, authorization=key)
    assert names(sink) == {"left": 1}
    assert sink.requests[-1][1]["authorization"] == "Bearer its"
    assert list(tmp_path.iterdir()) == []


def test_what_stays_in_a_folder_is_not_with_the_collector(
    sink: Sink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "damaged").write_text("in the way")
    (tmp_path / "bad.otlp").write_bytes(b"garbage")
    leave(tmp_path, "left")
    assert not send_leftover_spans(tmp_path, sink.url, timeout=60)
    assert names(sink) == {"left": 1}
    assert "It was not moved" in caplog.text


def test_the_url_is_otels_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    assert traces_url() == "http://127.0.0.1:4318/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://host/base/")
    assert traces_url() == "https://host/base/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other/exact")
    assert traces_url() == "http://other/exact"
    assert traces_url("http://given:1") == "http://given:1/v1/traces"


def test_headers_are_sent_and_a_restarted_collector_is_met_again(
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
    assert "content-encoding" not in headers  # nothing is won on the way to this very machine


def test_requests_are_compressed_where_that_was_asked_for(
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
    ("url", "told", "packed"),
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
def test_requests_are_compressed_where_they_leave_the_machine(
    url: str, told: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", told)
    assert Sender(url, timeout=1.0).compressed is packed
