"""Scratch folders: private, short enough for sockets, removed with the child."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from ltrain_train.processes.children import Children, Command
from ltrain_train.processes.scratch import MAX_SOCKET_PATH, scratch_path

SOCKET = 36


def test_a_deep_home_gets_a_short_folder(tmp_path: Path) -> None:
    near = scratch_path("vllm", parent=tmp_path / "h", max_socket_name=SOCKET)
    far = scratch_path("vllm", parent=tmp_path / ("deep" * 30), max_socket_name=SOCKET)
    assert near != far
    for each in (near, far):
        assert len(str(each)) + 1 + SOCKET <= MAX_SOCKET_PATH
    assert not far.is_relative_to(tmp_path / ("deep" * 30))


def test_only_folders_of_dead_owners_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    alive = scratch_path("t", parent=tmp_path, max_socket_name=0)
    dead = tmp_path / f"ltrain-t-{ended.pid}-aaaa"
    other = tmp_path / f"ltrain-u-{ended.pid}-aaaa"
    for each in (alive, dead, other):
        each.mkdir()
        (each / "file").touch()
    scratch_path("t", parent=tmp_path, max_socket_name=0)
    assert (alive.exists(), dead.exists(), other.exists()) == (True, False, True)


def test_a_childs_folder_is_private_and_removed_with_its_processes(tmp_path: Path) -> None:
    folder, log = tmp_path / "sockets" / "mine", tmp_path / "log"
    code = (
        "import sys, time; open(sys.argv[1] + '/file', 'w'); print(1, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with Children() as children:
        children.start(
            "c", Command(argv=command, log=log, scratch=folder), ready=lambda: bool(log.read_text())
        )
        assert (folder / "file").exists()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_a_folder_of_a_killed_guard_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    with Children() as children:
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        first = children.start("c", Command(argv=command, log=tmp_path / "log", scratch=folder))
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(60)
        (folder / "left").touch()
        first.request_stop()
        children.start("c", Command(argv=command, log=tmp_path / "log", scratch=folder))
        assert list(folder.iterdir()) == []
    assert not folder.exists()


def test_a_child_that_cannot_be_started_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    with Children() as children:
        child = children.start(
            "c",
            Command(
                argv=[sys.executable, "-c", "raise SystemExit(3)"],
                log=tmp_path / "l",
                scratch=folder,
            ),
        )
        assert child.wait(60) == 3
    assert not folder.exists()
