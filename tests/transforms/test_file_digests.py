"""Files are described by size and SHA-256, and read again only after a change."""

import os
from pathlib import Path

import pytest
from tests.damage import Damage, cut_in_half, damage_file, flip_a_bit

from ltrain_transforms import file_digests
from ltrain_transforms.file_digests import FileDigest, describe_files, find_damage

HELLO = FileDigest(5, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a").write_text("hello")
    return tmp_path


def test_a_file_is_described_by_its_size_and_digest(folder: Path) -> None:
    assert describe_files({"part/a": folder / "part" / "a"}) == {"part/a": HELLO}
    assert find_damage(folder, {"part/a": HELLO}) is None
    assert describe_files({}) == {} and find_damage(folder, {}) is None


@pytest.mark.parametrize(
    ("damage", "clause"),
    [
        (flip_a_bit, "part/a has the SHA-256 3417d62b0308…, expected 2cf24dba5fb0…"),
        (cut_in_half, "part/a has 2 bytes, expected 5 bytes"),
    ],
)
def test_a_damaged_file_is_named(folder: Path, damage: Damage, clause: str) -> None:
    assert find_damage(folder, {"part/a": HELLO}) is None
    damage_file(folder / "part" / "a", damage)
    assert find_damage(folder, {"part/a": HELLO}) == clause


def test_a_missing_file_is_named(folder: Path) -> None:
    clause = "b is missing, expected 5 bytes"
    assert find_damage(folder, {"part/a": HELLO, "b": HELLO}) == clause
    assert find_damage(folder, {"part": HELLO}) == "part is missing, expected 5 bytes"


def test_a_change_that_keeps_size_and_modification_time_is_seen(folder: Path) -> None:
    file = folder / "part" / "a"
    assert find_damage(folder, {"part/a": HELLO}) is None
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    with file.open("r+") as stream:
        stream.write("j")
    os.utime(file, ns=times)
    assert find_damage(folder, {"part/a": HELLO}) is not None


def test_an_unchanged_file_is_read_once_also_if_its_folder_moves(folder: Path) -> None:
    before = len(file_digests._known)
    for _ in range(3):
        describe_files({"a": folder / "part" / "a"})
    (folder / "part").rename(folder / "moved")
    assert describe_files({"a": folder / "moved" / "a"}) == {"a": HELLO}
    assert len(file_digests._known) == before + 1
