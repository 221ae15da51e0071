"""A copy of a store as files: summed when it is made, brought in and checked when it comes back.

A copy may come from anywhere. Nothing in it is believed before its files lie in a folder of ours:
only plain files with names below the copy come in, and each must have the length that ClickHouse's
own list says, and the digest that `ltrain store backup` wrote.
"""

import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path, PurePosixPath
from typing import IO
from xml.etree import ElementTree

from ltrain_collector.errors import BadBackup
from ltrain_instrument.private import make_private

LIST = ".backup"
"""ClickHouse's list of a copy's files."""

SUMS = "SHA256SUMS"
"""Ours, as `sha256sum -c` reads it; a copy of ltrain 0.1 has none."""

LONGEST_LIST = 1 << 28
"""Bytes of a list: of a million files."""

CHUNK = 1 << 20


def sum_up(folder: Path) -> int:
    """Check a new copy, add the digests of its files, and return the number of them.

    Raises:
        BadBackup: when it is not whole.
    """
    with _readable(folder):
        count = _check_list(folder, folder)
        lines = [
            f"{file_digest(file, 'sha256').hexdigest()}  {name}\n"  # type: ignore[arg-type]
            for name, file, _ in _files(folder)
        ]
        (folder / SUMS).write_text("".join(lines))
    return count


def pack(folder: Path, tar: Path) -> None:
    """Write a copy's files into one that only its owner can read."""
    with (
        open(os.open(tar, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
        tarfile.open(fileobj=file, mode="w") as opened,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                opened.add(path, path.relative_to(folder).as_posix())


def bring(copy: Path, into: Path) -> int:
    """Copy the files of a copy into a new folder of ours, check them there, and count them.

    Raises:
        BadBackup: when it is none, is not whole, or holds what a copy does not.
    """
    free = shutil.disk_usage(into.parent).free
    make_private(into)
    with _readable(copy):
        for name, file, size in _files(copy):
            free -= size
            if free < 0:
                raise BadBackup(f"{copy} needs more room than the disk of {into.parent} has free.")
            target = into / name
            make_private(target.parent)
            with target.open("xb") as opened:
                shutil.copyfileobj(file, opened, CHUNK)
            if target.stat().st_size != size:
                raise BadBackup(f"{copy} is not whole: {name} should have {size} bytes.")
        count = _check_list(copy, into)
        _check_sums(copy, into)
        return count


@contextmanager
def _readable(copy: Path) -> Iterator[None]:
    try:
        yield
    except BadBackup:
        raise
    except (OSError, ValueError, OverflowError, MemoryError, tarfile.TarError) as error:
        raise _none(copy, str(error)) from error
    except ElementTree.ParseError as error:
        raise _none(copy, str(error)) from error


def _none(copy: Path, why: str) -> BadBackup:
    return BadBackup(f"{copy} is no copy that `ltrain store backup` made, or is cut off: {why}")


def _files(copy: Path) -> Iterator[tuple[str, IO[bytes], int]]:
    """Yield the name, the content and the size of each file."""
    names = set[str]()
    for name, file, size in _members(copy) if copy.is_file() else _entries(copy):
        if not _plain(name) or name in names:
            raise BadBackup(f"{copy} is refused: a file of it is named '{ascii(name)[1:-1]}'.")
        names.add(name)
        yield name, file, size


def _plain(name: str) -> bool:
    """Return whether a name is that of a file below its copy."""
    path = PurePosixPath(name)
    return str(path) == name and not path.is_absolute() and not {"..", "."} & set(path.parts)


def _entries(copy: Path) -> Iterator[tuple[str, IO[bytes], int]]:
    if not copy.is_dir():
        raise _none(copy, "there is no such folder or file")
    for folder, below, names in os.walk(copy):
        for name in (*below, *names):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                continue
            if not stat.S_ISREG(mode):
                raise BadBackup(f"{copy} is refused: {path} is neither a file nor a folder.")
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                yield path.relative_to(copy).as_posix(), file, path.lstat().st_size


def _members(copy: Path) -> Iterator[tuple[str, IO[bytes], int]]:
    with tarfile.open(copy, "r:") as tar:  # a packed one could be of any size
        for member in tar:
            if member.isdir():
                continue
            file = tar.extractfile(member) if member.isreg() and not member.issparse() else None
            if file is None:
                raise BadBackup(f"{copy} is refused: {member.name} is neither a file nor a folder.")
            with file:
                yield member.name.removeprefix("./"), file, member.size


def _check_list(copy: Path, folder: Path) -> int:
    """Check every file against ClickHouse's list, and return the number of them."""
    path = folder / LIST
    if not path.is_file():
        raise _none(copy, f"it has no file {LIST}")
    if path.stat().st_size > LONGEST_LIST:
        raise BadBackup(f"{copy} is refused: its list is longer than {LONGEST_LIST >> 20} MiB.")
    root = ElementTree.fromstring(path.read_bytes())
    for name in ("base_backup", "original_namespace", "data_file_name_generator"):
        if root.find(f".//{name}") is not None:
            raise BadBackup(f"{copy} is refused: it refers to files outside ({name}).")
    files = list(root.iter("file"))
    for each in files:
        size = int(each.findtext("size") or 0)
        name = each.findtext("name") or ""
        data = each.findtext("data_file") or name
        if not _plain(name) or not _plain(data) or each.find("use_base") is not None:
            raise BadBackup(f"{copy} is refused: its list names '{ascii(name)[1:-1]}'.")
        found = (folder / data).stat().st_size if (folder / data).is_file() else None
        if size and found != size:
            what = "missing" if found is None else f"{found} bytes"
            raise BadBackup(f"{copy} is not whole: {data} should have {size} bytes, it is {what}.")
    return len(files)


def _check_sums(copy: Path, folder: Path) -> None:
    """Check every file against the digests, where the copy has them."""
    path = folder / SUMS
    if not path.is_file():
        return
    lines = path.read_text().splitlines()
    wanted = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    here = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}
    if here != {*wanted, SUMS}:
        odd = min(here ^ {*wanted, SUMS})
        raise BadBackup(f"{copy} is not whole: {odd} is not in both {SUMS} and the copy.")
    for name, digest in wanted.items():
        with (folder / name).open("rb") as file:
            if file_digest(file, "sha256").hexdigest() != digest:
                raise BadBackup(
                    f"{copy} is damaged: {name} is not as `ltrain store backup` wrote it. Nothing "
                    "was restored; take another copy."
                )
