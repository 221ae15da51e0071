"""The files of a backup: written with checksums, and checked before they are restored.

A backup can come from anyone. Only regular files with plain relative names are copied into a folder
of the store. There, each file must have the length that ClickHouse's own list names and the digest
that `ltrain store backup` wrote.
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
from ltrain_instrument.disk import read_disk
from ltrain_instrument.files import make_private

LIST = ".backup"
"""ClickHouse's list of the files of a backup."""

SUMS = "SHA256SUMS"
"""ltrain's list of digests, in the format of `sha256sum -c`; a backup of ltrain 0.1 has none."""

MAX_LIST_BYTES = 1 << 28
"""Size limit of the list: a million files."""

CHUNK_BYTES = 1 << 20


def write_checksums(folder: Path) -> int:
    """Check a new backup, write the digests of its files, and return the number of files."""
    with _readable(folder):
        count = _check_list(folder, folder)
        lines = [
            f"{file_digest(file, 'sha256').hexdigest()}  {name}\n"  # type: ignore[arg-type]
            for name, file, _ in _files(folder)
        ]
        (folder / SUMS).write_text("".join(lines))
    return count


def write_tar(folder: Path, tar: Path) -> None:
    """Write the files of a backup into one tar file that only its owner can read."""
    with (
        open(os.open(tar, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
        tarfile.open(fileobj=file, mode="w") as opened,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                opened.add(path, path.relative_to(folder).as_posix())


def import_backup(copy: Path, into: Path) -> int:
    """Copy the files of a backup into the new folder `into`, check them and return their number."""
    free = read_disk(into.parent).free
    make_private(into)
    with _readable(copy):
        for name, file, size in _files(copy):
            free -= size
            if free < 0:
                raise BadBackup(
                    f"The disk of {into.parent} has too little free space for {copy}. Free some, "
                    "or restore into a store on another disk."
                )
            target = into / name
            make_private(target.parent)
            with target.open("xb") as opened:
                shutil.copyfileobj(file, opened, CHUNK_BYTES)
            if target.stat().st_size != size:
                raise BadBackup(
                    f"{copy} is incomplete: {name} should have {size} bytes. Use another backup."
                )
        count = _check_list(copy, into)
        _check_digests(copy, into)
        return count


@contextmanager
def _readable(copy: Path) -> Iterator[None]:
    try:
        yield
    except BadBackup:
        raise
    except (OSError, ValueError, OverflowError, MemoryError, tarfile.TarError) as error:
        raise _not_a_backup(copy, str(error)) from error
    except ElementTree.ParseError as error:
        raise _not_a_backup(copy, str(error)) from error


def _not_a_backup(copy: Path, why: str) -> BadBackup:
    return BadBackup(
        f"{copy} is not a backup made by `ltrain store backup`, or is truncated: {why}"
    )


def _files(copy: Path) -> Iterator[tuple[str, IO[bytes], int]]:
    """Yield the name, the content and the size of each file."""
    names = set[str]()
    for name, file, size in _members(copy) if copy.is_file() else _entries(copy):
        if not _is_plain_name(name) or name in names:
            raise BadBackup(
                f"{copy} is refused: it has a file named '{ascii(name)[1:-1]}', which is not a "
                "relative name or occurs twice."
            )
        names.add(name)
        yield name, file, size


def _is_plain_name(name: str) -> bool:
    """Return whether a name is relative and stays below the backup's folder."""
    path = PurePosixPath(name)
    return str(path) == name and not path.is_absolute() and not {"..", "."} & set(path.parts)


def _entries(copy: Path) -> Iterator[tuple[str, IO[bytes], int]]:
    if not copy.is_dir():
        raise _not_a_backup(copy, "there is no such folder or file")
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
    with tarfile.open(copy, "r:") as tar:  # a compressed one could expand to any size
        for member in tar:
            if member.isdir():
                continue
            file = tar.extractfile(member) if member.isreg() and not member.issparse() else None
            if file is None:
                raise BadBackup(f"{copy} is refused: {member.name} is neither a file nor a folder.")
            with file:
                yield member.name.removeprefix("./"), file, member.size


def _check_list(copy: Path, folder: Path) -> int:
    """Check every file against ClickHouse's list; return the number of files."""
    path = folder / LIST
    if not path.is_file():
        raise _not_a_backup(copy, f"it has no file {LIST}")
    if path.stat().st_size > MAX_LIST_BYTES:
        raise BadBackup(f"{copy} is refused: its list is longer than {MAX_LIST_BYTES >> 20} MiB.")
    root = ElementTree.fromstring(path.read_bytes())
    for name in ("base_backup", "original_namespace", "data_file_name_generator"):
        if root.find(f".//{name}") is not None:
            raise BadBackup(f"{copy} is refused: it refers to files outside ({name}).")
    files = list(root.iter("file"))
    for each in files:
        size = int(each.findtext("size") or 0)
        name = each.findtext("name") or ""
        data = each.findtext("data_file") or name
        if (
            not _is_plain_name(name)
            or not _is_plain_name(data)
            or each.find("use_base") is not None
        ):
            raise BadBackup(f"{copy} is refused: its list names '{ascii(name)[1:-1]}'.")
        actual_size = (folder / data).stat().st_size if (folder / data).is_file() else None
        if size and actual_size != size:
            what = "missing" if actual_size is None else f"{actual_size} bytes"
            raise BadBackup(
                f"{copy} is incomplete: {data} should have {size} bytes, it is {what}. Use another "
                "backup."
            )
    return len(files)


def _check_digests(copy: Path, folder: Path) -> None:
    """Check every file against the backup's digests, if it has them."""
    path = folder / SUMS
    if not path.is_file():
        return
    lines = path.read_text().splitlines()
    digests = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    names = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}
    if names != {*digests, SUMS}:
        name = min(names ^ {*digests, SUMS})
        raise BadBackup(
            f"{copy} is incomplete: {name} is not both in {SUMS} and among its files. Use another "
            "backup."
        )
    for name, digest in digests.items():
        with (folder / name).open("rb") as file:
            if file_digest(file, "sha256").hexdigest() != digest:
                raise BadBackup(
                    f"{copy} is damaged: {name} changed after `ltrain store backup` wrote it. "
                    "Nothing was restored; use another backup."
                )
