"""Writers that are killed at any moment leave the old content or the new content."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ltrain_instrument.files import (
    create_file,
    finish_replacement,
    hold_file,
    is_held,
    move_into_place,
    replace_directory,
    temporary_directory,
    temporary_sibling,
    write_file,
)

DEAD = 999_999_999
"""A process id that no process has."""

WRITER = """
import sys
from pathlib import Path
from ltrain_instrument.files import replace_directory, write_file

folder = Path(sys.argv[1])
for number in range(1_000_000):
    write_file(folder / "file", f"{number} " * 20_000)
    with replace_directory(folder / "directory") as draft:
        for name in ("a", "b"):
            (draft / name).write_text(f"{number} " * 20_000)
    print(number, flush=True)
"""

# ends the process before the N-th system call that the module makes with these functions
KILLED = """
import os, signal, sys
from pathlib import Path
from ltrain_instrument.files import replace_directory, write_file

left = int(sys.argv[3])
def counted(call):
    def wrapper(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return wrapper

for name in ("open", "fsync", "rename", "mkdir", "unlink", "rmdir"):
    setattr(os, name, counted(getattr(os, name)))
folder = Path(sys.argv[1])
if sys.argv[2] == "file":
    write_file(folder / "file", "new")
else:
    with replace_directory(folder / "directory") as draft:
        (draft / "file").write_text("new")
"""


def test_a_writer_killed_at_random_leaves_whole_files(tmp_path: Path) -> None:
    for seconds in (0.0, 0.003, 0.011, 0.02):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        with writer.stdout:
            assert writer.stdout.readline() == "0\n"
            time.sleep(seconds)
            writer.kill()
        assert writer.wait() == -signal.SIGKILL
        assert_whole(tmp_path / "file")
        with temporary_sibling(tmp_path / "directory"):
            pass  # the next writer puts back what was between two renames
        first, second = (tmp_path / "directory" / name for name in ("a", "b"))
        assert_whole(first)
        assert first.read_text() == second.read_text()
    write_file(tmp_path / "file", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "file"]


def assert_whole(file: Path) -> None:
    words = file.read_text().split()
    assert (len(words), len(set(words))) == (20_000, 1)


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_writer_killed_before_each_call_leaves_old_or_new(tmp_path: Path, kind: str) -> None:
    contents, status, calls = [], -signal.SIGKILL, 0
    while status == -signal.SIGKILL:
        write_file(tmp_path / "file", "old")
        with replace_directory(tmp_path / "directory") as draft:
            (draft / "file").write_text("old")
        command = [sys.executable, "-c", KILLED, str(tmp_path), kind, str(calls)]
        status, calls = subprocess.run(command, check=False).returncode, calls + 1
        finish_replacement(tmp_path / "directory")
        assert (tmp_path / "directory" / "file").exists()
        with temporary_sibling(tmp_path / "directory"), temporary_sibling(tmp_path / "file"):
            pass
        path = tmp_path / "file" if kind == "file" else tmp_path / "directory" / "file"
        contents.append(path.read_text())
        assert sorted(each.name for each in tmp_path.iterdir()) == ["directory", "file"]
    assert status == 0
    assert calls > 4
    assert contents == sorted(contents, reverse=True)  # old, old, …, new
    assert {"old", "new"} == set(contents)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError), replace_directory(tmp_path / "new" / "directory") as draft:
        (draft / "file").write_text("half")
        raise ValueError
    (tmp_path / "folder" / "below").mkdir(parents=True)
    with pytest.raises(OSError):
        write_file(tmp_path / "folder", "a file cannot replace a folder")
    assert list((tmp_path / "new").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "new"]


def test_only_siblings_of_the_same_path_and_of_ended_processes_are_removed(tmp_path: Path) -> None:
    others = [
        f".file.{os.getppid()}-0badcafe.part",  # it runs
        f".file.txt.{DEAD}-0badcafe.part",  # of another path
        f".file.{DEAD}.part",  # the name of somebody else
    ]
    own = f".file.{os.getpid()}-0badcafe.part"  # of a process before this one, in another container
    for name in (*others, own, f".file.{DEAD}-0badcafe.part"):
        (tmp_path / name).touch()
    with temporary_sibling(tmp_path / "file") as first, temporary_sibling(tmp_path / "file"):
        first.touch()
        write_file(tmp_path / "file", "new")
        assert first.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "file"])


def test_a_file_is_created_once_and_private(tmp_path: Path) -> None:
    assert create_file(tmp_path / "secret", "one", 0o600)
    assert not create_file(tmp_path / "secret", "two", 0o600)
    assert (tmp_path / "secret").read_text() == "one"
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    with temporary_directory(tmp_path / "a" / "b") as draft:
        assert draft.stat().st_mode & 0o777 == draft.parent.stat().st_mode & 0o777 == 0o700


def test_nothing_replaces_a_folder_with_files(tmp_path: Path) -> None:
    for name in ("draft", "folder"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with pytest.raises(OSError):
        move_into_place(tmp_path / "draft", tmp_path / "folder")
    assert (tmp_path / "folder" / "file").read_text() == "folder"


@pytest.mark.parametrize("name", ["file", "folder"])
def test_a_file_is_held_until_each_holder_has_closed_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    else:
        path.write_text("{}")
        path.chmod(0o444)
    assert not is_held(path)
    first, second = hold_file(path), hold_file(path)
    os.close(first)
    assert is_held(path)
    os.close(second)
    assert not is_held(path)
