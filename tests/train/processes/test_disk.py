"""A full disk is reported and leaves nothing half-written."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from ltrain_train.errors import DiskFull, DiskReadOnly
from ltrain_train.learner.weights import atomic_directory
from ltrain_train.processes import disk
from ltrain_train.processes.disk import disk_error, disk_full_error, require_space


def _caused(cause: Exception) -> Exception:
    error = RuntimeError("the writer failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), DiskFull),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DiskFull),
        (OSError(errno.EROFS, "Read-only file system"), DiskReadOnly),
        (OSError(errno.EIO, "Input/output error"), None),
        (RuntimeError("SafetensorError: IoError(Os { code: 28, kind: StorageFull })"), DiskFull),
        (RuntimeError("ComputeError: No space left on device (os error 28)"), DiskFull),
        (RuntimeError("ComputeError: Read-only file system (os error 30)"), DiskReadOnly),
        (RuntimeError("the loss is not finite"), None),
        (_caused(OSError(errno.ENOSPC, "No space left on device")), DiskFull),
    ],
    ids=repr,
)
def test_errors_of_a_disk_are_recognized(
    error: Exception, kind: type[Exception] | None, tmp_path: Path
) -> None:
    found = disk_error(error, tmp_path, "the checkpoint")
    assert found is None if kind is None else type(found) is kind


def test_a_read_only_disk_is_reported_with_its_remedy(tmp_path: Path) -> None:
    with (
        pytest.raises(DiskReadOnly, match=f"The disk of {tmp_path}/1 is read-only: the checkpoint"),
        atomic_directory(tmp_path / "1", "the checkpoint", 10),
    ):
        raise OSError(errno.EROFS, "Read-only file system")
    assert list(tmp_path.iterdir()) == []


def test_the_error_names_the_folder_the_size_and_what_to_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 3_000_000)
    message = str(disk_full_error(tmp_path, "the checkpoint", 120_000_000))
    assert message.startswith(
        f"The disk of {tmp_path} is full: the checkpoint needs about 120.0 MB, 3.0 MB are free. "
    )
    assert "Free space there: `ltrain policy prune NAME --yes` removes old versions" in message
    assert "runs/" not in message  # they hold the checkpoints and journals that versions need
    assert "datasets/" in message and "run the same command again" in message
    require_space(tmp_path, 3_000_000, "the checkpoint")
    with pytest.raises(DiskFull):
        require_space(tmp_path, 3_000_001, "the checkpoint")


def test_a_directory_that_does_not_fit_is_not_started(tmp_path: Path) -> None:
    with (
        pytest.raises(DiskFull, match="the new version needs about"),
        atomic_directory(tmp_path / "v1", "the new version", 1 << 60),
    ):
        raise AssertionError("it was begun")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_the_previous_directory(tmp_path: Path) -> None:
    with atomic_directory(tmp_path / "1", "the checkpoint", 10) as draft:
        (draft / "file").write_text("old")
    with (
        pytest.raises(DiskFull, match=f"The disk of {tmp_path}/1 is full"),
        atomic_directory(tmp_path / "1", "the checkpoint", 10) as draft,
    ):
        (draft / "file").write_text("ne")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert [each.name for each in tmp_path.iterdir()] == ["1"]
    assert (tmp_path / "1" / "file").read_text() == "old"


def test_another_error_is_raised_unchanged(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finite"), atomic_directory(tmp_path / "1", "it", 10):
        raise ValueError("not finite")
    assert list(tmp_path.iterdir()) == []


def test_drafts_of_a_killed_process_are_removed_without_a_finished_directory(
    tmp_path: Path,
) -> None:
    left, others = (tmp_path / f".{name}.999999999-0badcafe.part" for name in ("1", "1.0"))
    for folder in (left, others):
        folder.mkdir()
        (folder / "file").write_text("half")
    with atomic_directory(tmp_path / "1", "the checkpoint", 10) as draft:
        assert not left.exists()
        (draft / "file").write_text("new")
    assert sorted(each.name for each in tmp_path.iterdir()) == [others.name, "1"]


def test_the_previous_directory_is_put_back(tmp_path: Path) -> None:
    old = tmp_path / ".1.999999999-0badcafe.old"  # its process was killed between two renames
    old.mkdir()
    with pytest.raises(ValueError, match="not finite"), atomic_directory(tmp_path / "1", "it", 10):
        raise ValueError("not finite")
    assert [each.name for each in tmp_path.iterdir()] == ["1"]


def test_a_draft_is_private(tmp_path: Path) -> None:
    with atomic_directory(tmp_path / "checkpoints" / "1", "the checkpoint", 10):
        pass
    for folder in (tmp_path / "checkpoints", tmp_path / "checkpoints" / "1"):
        assert folder.stat().st_mode & 0o777 == 0o700


NO_INODE = """
import sys
from pathlib import Path
from ltrain_train.errors import DiskFull, DiskReadOnly
from ltrain_train.learner.weights import atomic_directory
try:
    with atomic_directory(Path(sys.argv[1]) / "1", "the checkpoint", 10):
        raise AssertionError("it was begun")
except DiskFull as error:
    print(error)
"""


def test_a_disk_without_room_for_a_folder_is_reported(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o nr_inodes=1 none "$1" && exec "$2" -c "$3" "$1"'
    shell = ("sh", "-c", mount, "sh", str(tmp_path), sys.executable, NO_INODE)
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", *shell],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith(f"The disk of {tmp_path}/1 is full: the checkpoint"), done.stderr
