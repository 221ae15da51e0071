import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.http_requests import health, post

from ltrain_collector.store import Store

SMALL = ("unshare", "--map-root-user", "--mount", "sh", "-c")
"""Runs a command in its own mount namespace, which ends with the process."""


def small_disk(directory: Path) -> tuple[str, ...]:
    """Return the command that runs another one with a disk of 64 MiB at `directory`."""
    script = 'mount -t tmpfs -o size=64m none "$0" && exec "$@"'
    command = (*SMALL, script, str(directory))
    if not shutil.which("unshare") or subprocess.run((*command, "true")).returncode:
        pytest.skip("this machine lets nobody mount a disk of his own")
    return command


def test_a_full_disk_is_reported_and_freed_it_is_used_again(
    start: Callable[..., Any], request_of: Callable[..., bytes], tmp_path: Path
) -> None:
    up = start(tmp_path / "store", within=small_disk(tmp_path))
    inside = Path(f"/proc/{up.pid}/root{tmp_path}")
    bodies = [
        request_of(*((trace, span) for span in range(1, 65)), text=os.urandom(4000).hex())
        for trace in range(1, 4)
    ]
    assert post(up.otlp, bodies[0]).status == 200
    room = os.statvfs(inside)
    (inside / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize - 100_000))
    for _ in range(2):
        answer = post(up.otlp, bodies[1])
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert b"disk is full" in answer.body
    (inside / "ballast").unlink()
    assert post(up.otlp, bodies[1]).status == 200
    assert post(up.otlp, bodies[2]).status == 200
    with Store.open(up.dsn) as store:
        stored = store.query("SELECT TraceId, count() AS n FROM otel.spans GROUP BY 1 ORDER BY 1")
    assert stored["n"].to_list() == [64, 64, 64]
    report = health(up.otlp)
    assert report["traces"]["refused"] == {"engine": 2}
    assert (report["traces"]["accepted"], report["failures"]) == (192, 2)
