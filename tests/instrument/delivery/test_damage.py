"""Damage in a spool affects only the records that it hits."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.instrument.delivery.test_spool import names, request

from ltrain_instrument.delivery.frames import (
    MAX_RECORD_BYTES,
    RecordReader,
    encode_record,
    write_sent_mark,
)
from ltrain_instrument.delivery.spool import Spool

if TYPE_CHECKING:
    from tests.instrument.conftest import Sink

REQUESTS = [bytes([65 + number]) * (20 + number) for number in range(6)]
FRAMES = [encode_record(each) for each in REQUESTS]
HEAD = 12
"""Bytes before the request: mark, length, checksum."""


def read_records(path: Path) -> tuple[list[bytes], int]:
    with path.open("rb") as opened:
        reader = RecordReader(opened.fileno())
        return [record.request for record in reader], reader.damaged


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_complete_records_are_read_and_sent_ones_are_skipped(file: Path) -> None:
    file.write_bytes(b"".join(FRAMES))
    with file.open("r+b") as opened:
        second = list(RecordReader(opened.fileno()))[1]
        write_sent_mark(opened.fileno(), second)
    assert read_records(file) == ([*REQUESTS[:1], *REQUESTS[2:]], 0)


@pytest.mark.parametrize("place", range(HEAD + 22))
@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_bit_costs_its_own_record(file: Path, place: int, bit: int) -> None:
    frame = bytearray(FRAMES[2])
    frame[place] ^= 1 << bit
    file.write_bytes(b"".join([*FRAMES[:2], frame, *FRAMES[3:]]))
    assert read_records(file) == ([*REQUESTS[:2], *REQUESTS[3:]], len(frame))


@pytest.mark.parametrize("length_left", range(len(FRAMES[-1])))
def test_a_file_that_ends_early_costs_its_last_record(file: Path, length_left: int) -> None:
    file.write_bytes(b"".join(FRAMES[:-1]) + FRAMES[-1][:length_left])
    assert read_records(file) == (REQUESTS[:-1], length_left)


@pytest.mark.parametrize("length", [0, 1, 21, 23, MAX_RECORD_BYTES + 1, (4 << 30) - 1])
def test_a_wrong_length_costs_its_own_record(file: Path, length: int) -> None:
    wrong_length = FRAMES[2][:4] + struct.pack(">I", length) + FRAMES[2][8:]
    file.write_bytes(b"".join([*FRAMES[:2], wrong_length, *FRAMES[3:]]))
    assert read_records(file) == ([*REQUESTS[:2], *REQUESTS[3:]], len(wrong_length))


def test_a_search_through_a_terabyte_of_zeros_stops_early(file: Path) -> None:
    with file.open("wb") as opened:
        opened.write(FRAMES[0])
        opened.truncate(1 << 40)
    started = time.process_time()
    assert read_records(file)[0] == REQUESTS[:1]
    assert time.process_time() - started < 10


FALSE_MARKS = [
    b"\xf5LT",
    b"\xf5LT+",
    b"\xf5LT-\0\0\0\1\0\0\0\0",
    b"\xf5LT+\0\x0f\xff\xff\0\0\0\0",
    b"\xf5LT" + bytes(1000),
]


@pytest.mark.parametrize("mark", FALSE_MARKS)
def test_false_marks_cost_no_more_than_their_bytes(file: Path, mark: bytes) -> None:
    few, many = mark * (100_000 // len(mark)), mark * ((8 << 20) // len(mark))
    file.write_bytes(many)
    started = time.process_time()
    assert read_records(file) == ([], len(many))
    file.write_bytes(FRAMES[0] + few + FRAMES[1])
    assert read_records(file) == (REQUESTS[:2], len(few))
    assert time.process_time() - started < 10


CHANGES = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 60), st.binary(max_size=60)), max_size=4
)
"""Position of the removed bytes, their number, and the bytes that replace them."""


@given(CHANGES)
def test_complete_records_are_read_whatever_overwrites_the_file(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int, bytes]]
) -> None:
    written = b"".join(FRAMES)
    for at, size, new in changes:
        written = written[:at] + new + written[at + size :]
    file = tmp_path_factory.mktemp("damage") / "file"
    file.write_bytes(written)
    recovered, damaged = read_records(file)
    complete = [each for each, frame in zip(REQUESTS, FRAMES, strict=True) if frame in written]
    assert recovered == complete
    assert damaged == len(written) - sum(HEAD + len(each) for each in complete)


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("kept")


def _symbolic_link(path: Path) -> None:
    target = path.with_name("secret")
    target.write_bytes(encode_record(request("behind a link")))
    path.symlink_to(target)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))


def _garbled(path: Path) -> None:
    frame = bytearray(encode_record(request("garbled")))
    frame[20] ^= 1
    path.write_bytes(encode_record(request("before")) + frame + encode_record(request("behind")))


def _huge(path: Path) -> None:
    frame = encode_record(request("huge"))
    path.write_bytes(frame[:4] + b"\xff" * 4 + frame[8:] + encode_record(request("behind")))


@pytest.mark.parametrize(
    ("make", "recovered"),
    [
        (_folder, set()),
        (_symbolic_link, set()),
        (_socket, set()),
        (os.mkfifo, set()),
        (lambda path: path.write_bytes(b"garbage" * 100), set()),
        (lambda path: path.write_bytes(encode_record(request("before"))[:-1]), set()),
        (_garbled, {"before", "behind"}),
        (_huge, {"behind"}),
    ],
)
def test_a_damaged_file_stops_nothing_and_is_moved_aside(
    sink: Sink,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Path], object],
    recovered: set[str],
) -> None:
    spool_folder = tmp_path / "s"
    spool_folder.mkdir()
    for number in range(3):
        (spool_folder / f"good-{number}.otlp").write_bytes(encode_record(request(f"good-{number}")))
    make(spool_folder / "bad.otlp")
    for round_ in range(2):
        spool = Spool(spool_folder, sink.url)
        spool.append(request(f"own-{round_}"))
        assert spool.flush(60)
        spool.close()
        assert spool.damaged == (round_ == 0)
    expected = {"good-0", "good-1", "good-2", "own-0", "own-1", *recovered}
    assert names(sink) == Counter(expected)
    assert [path.name for path in spool_folder.glob("*.otlp")] == []
    assert [path.name for path in (spool_folder / "damaged").iterdir()] == ["bad.otlp"]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"Spool file '{spool_folder}/bad.otlp' is" in warning
    assert f"It was moved to '{spool_folder}/damaged/bad.otlp'." in warning


def test_a_damaged_file_that_was_moved_aside_has_no_unsent_span(sink: Sink, tmp_path: Path) -> None:
    _garbled(tmp_path / "bad.otlp")
    spool = Spool(tmp_path, sink.url)
    assert spool.flush(60)
    (tmp_path / "damaged" / "bad.otlp").rename(tmp_path / "again.otlp")
    assert spool.flush(60)
    spool.close()
    assert names(sink) == {"before": 1, "behind": 1}


def test_a_file_named_refused_costs_only_refused_requests(
    sink: Sink,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    original = type(sink).respond

    def respond(self: Sink, path: str, body: bytes) -> tuple[int, str, bytes]:
        if b"poison" in body:
            return 400, "text/plain", b"no poison"
        return original(self, path, body)

    monkeypatch.setattr(type(sink), "respond", respond)
    (tmp_path / "refused").write_text("in the way")
    spool = Spool(tmp_path, sink.url)
    for name in ("a", "poison", "b"):
        spool.append(request(name))
    assert spool.flush(60)
    spool.close()
    assert names(sink) == {"a": 1, "b": 1}
    assert (spool.refused, spool.dropped) == (1, 1)
    assert caplog.text.count("Spans were refused and dropped: ") == 1
