"""`ltrain import` of files that are designed to exhaust its memory or time."""

import gzip
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd

from ltrain_collector.store import Store
from ltrain_collector.transfer.documents import MAX_DOCUMENT_BYTES, read_documents

MIB = 1 << 20
PEAK = 1200
"""MiB; the engine alone takes some hundred."""
LINE = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"%032x","spanId":"%016x",' % (1, 1)
GOOD = LINE + b'"name":"chat","startTimeUnixNano":"1790000000000000000"}]}]}]}\n'


SECONDS = 60
"""Of CPU."""


MEASURED = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
report = json.loads(done.stdout)
print(json.dumps([done.returncode, report, used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""
"""A small process starts what is measured: a child's peak begins at that of its parent."""


def import_files(path: Path, store: Path) -> tuple[int, dict[str, object], int]:
    """Import within `SECONDS`; return the status, the report, and the peak memory in MiB."""
    argv = [sys.executable, "-m", "ltrain", "import", str(path), "--json"]
    argv += ["--store", f"chdb://{store}"]
    measured = subprocess.check_output([sys.executable, "-c", MEASURED, *argv])
    status, report, seconds, kib = json.loads(measured)
    assert seconds < SECONDS
    return status, report, kib >> 10


def faults(path: Path) -> list[str]:
    return [each.fault for each in read_documents(path) if each.fault]


@pytest.mark.nightly
def test_a_line_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"resourceSpans": "')
        for _ in range(1536):
            file.write(b"a" * MIB)
    code, report, peak = import_files(path, tmp_path / "store")
    assert code == 1
    assert report["stored"] == 0
    assert "is longer than 64 MiB" in str(report["where_unreadable"])
    assert peak < PEAK


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress], ids=["plain", "gz", "zst"])
def test_what_stands_beside_a_long_line_is_stored(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_bytes(pack(GOOD + b'{"x": "' + b"y" * (MAX_DOCUMENT_BYTES + MIB) + b'"}\n' + GOOD))
    code, report, peak = import_files(path, tmp_path / "store")
    assert (code, report["stored"], report["unreadable"]) == (1, 2, 1)
    assert f"{path}:2: it is longer than 64 MiB. Split it" in str(report["where_unreadable"])
    assert peak < PEAK
    with Store.open(f"chdb://{tmp_path}/store") as store:
        assert store.query("SELECT SpanName FROM otel.spans").height == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "content",
    [
        b'{"a": "' + b"x" * (40 * MIB),
        b'{"a": "' + b'\\"' * (20 * MIB),
        b"{" + b'"' * (20 * MIB + 1),
        b"[" * (20 * MIB),
        b"{" + b"\n" * MIB,
        b"[" + b"[],\n" * MIB,
        b"{" + b"{}" * (20 * MIB),
    ],
    ids=["open text", "escapes", "quotes", "brackets", "blank lines", "lists", "objects"],
)
def test_json_that_does_not_end_is_read_in_a_moment(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "traces.json"
    path.write_bytes(content)
    began = time.process_time()
    assert len(faults(path)) == 1
    assert time.process_time() - began < 30


def test_a_file_that_is_a_bomb_is_not_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ltrain_collector.transfer.documents.MIN_BOMB_BYTES", 8 * MIB)
    path = tmp_path / "bomb.zst"
    path.write_bytes(zstd.compress(b"{}\n" + b" " * (512 * MIB)))
    assert path.stat().st_size < MIB
    began = time.process_time()
    [fault] = faults(path)
    assert "it decompresses to more than 250 times its size" in fault
    assert time.process_time() - began < 30


def test_gigabytes_of_zeros_end_at_once(tmp_path: Path) -> None:
    path = tmp_path / "zeros.bin"
    with path.open("wb") as file:
        file.truncate(3 << 30)
    code, report, peak = import_files(path, tmp_path / "store")
    assert (code, report["stored"], report["unreadable"]) == (1, 0, 1)
    assert "it is neither OTLP in JSON nor protobuf" in str(report["where_unreadable"])
    assert peak < PEAK


def test_blank_lines_without_end_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "blank.jsonl"
    path.write_bytes(GOOD + b"\n" * (64 * MIB) + GOOD)
    began = time.process_time()
    [fault] = faults(path)
    assert "blank lines; the rest is not read" in fault
    assert time.process_time() - began < 10


def test_json_that_is_nested_deeply_is_a_fault(tmp_path: Path) -> None:
    nested = b'{"arrayValue":{"values":[' * 450 + b"]}}" * 450
    attribute = b'"attributes":[{"key":"a","value":' + nested + b"}],"
    path = tmp_path / "traces.jsonl"
    path.write_bytes(GOOD.replace(b'"name"', attribute + b'"name"') + GOOD)
    code, report, _ = import_files(path, tmp_path / "store")
    assert code in (0, 1)
    assert report["stored"] or report["unreadable"]
    path.write_bytes(b"[" * 100_000 + b"]" * 100_000 + b"\n" + GOOD)
    code, report, _ = import_files(path, tmp_path / "other")
    assert (code, report["stored"], report["unreadable"]) == (1, 1, 1)


def test_messages_with_wrong_lengths(tmp_path: Path) -> None:
    path = tmp_path / "traces.bin"
    path.write_bytes((MAX_DOCUMENT_BYTES + 1).to_bytes(4, "big") + b"x" * 100)
    assert "a message is longer than 64 MiB" in faults(path)[0]
    path.write_bytes((4 << 30).to_bytes(5, "big")[1:] + b"x" * 100)
    assert faults(path)
    bomb = zstd.compress(b"\0" * (1 << 30))
    path.write_bytes(len(bomb).to_bytes(4, "big") + bomb)
    assert "longer than 64 MiB decompressed" in faults(path)[0]
