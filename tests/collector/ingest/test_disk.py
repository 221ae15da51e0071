import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.http_requests import ask, health, post
from tests.small_disk import small_disk

from ltrain.doctor_collector import health_faults
from ltrain_collector.access import sign_service
from ltrain_collector.store import Store


def test_a_full_disk_is_reported_and_freed_it_is_used_again(
    start: Callable[..., Any],
    request_of: Callable[..., bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LTRAIN_STORE_SECRET", "s" * 40)  # its file is on the small disk
    up = start(tmp_path / "store", within=small_disk(tmp_path))
    inside = Path(f"/proc/{up.pid}/root{tmp_path}")
    own = {"Authorization": f"Bearer {sign_service('s' * 40, 3600)}"}  # may use the disk's reserve
    bodies = [
        request_of(*((trace, span) for span in range(1, 65)), text=os.urandom(4000).hex())
        for trace in range(1, 4)
    ]
    assert post(up.otlp, bodies[0], **own).status == 200
    room = os.statvfs(inside)
    (inside / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize - 100_000))
    for _ in range(2):
        answer = post(up.otlp, bodies[1], **own)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert b"disk is full" in answer.body
    (inside / "ballast").unlink()
    assert post(up.otlp, bodies[1], **own).status == 200
    assert post(up.otlp, bodies[2], **own).status == 200
    with Store.open(up.dsn) as store:
        stored = store.query("SELECT TraceId, count() AS n FROM otel.spans GROUP BY 1 ORDER BY 1")
    assert stored["n"].to_list() == [64, 64, 64]
    report = health(up.otlp)
    assert (report["status"], "No space" in str(report)) == ("ok", False)
    assert report["traces"]["refused"] == {"engine": 2}
    assert (report["traces"]["accepted"], report["failures"]) == (192, 2)


def test_a_read_only_disk_is_reported_and_writable_it_is_used_again(
    start: Callable[..., Any],
    request_of: Callable[..., bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LTRAIN_STORE_SECRET", "s" * 40)
    up = start(tmp_path / "store", within=small_disk(tmp_path))
    namespaces = ("--user", "--mount", "--preserve-credentials", "--wd=/")
    within = ["nsenter", "--target", str(up.pid), *namespaces]
    disk, body = str(tmp_path), request_of((1, 1))
    subprocess.run([*within, "mount", "--bind", "--options", "ro", disk, disk], check=True)
    answer = post(up.otlp, body)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert b"The store's disk is read-only. Make the disk writable, then send again" in answer.body
    sick = ask(up.otlp, "GET", "/health")
    assert (sick.status, sick.json["failures"]) == (503, 1)
    remedy = r"The disk of .*/store is read-only, so nothing is stored\. Make it writable; `dmesg`"
    _, problem, _ = next(health_faults(sick.json))
    assert re.match(remedy, problem)
    subprocess.run([*within, "umount", "--lazy", disk], check=True)
    assert post(up.otlp, body).status == 200
    assert health(up.otlp)["status"] == "ok"
