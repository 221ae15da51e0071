"""Reads what a sandbox hands out, without trust in it: plain files, folders and inner links.

* A name has no empty, `.` or `..` part. Files and folders are made before links, so that no file is
  written through a link.
* A link leads to a place inside: its target is relative, and `..` stands only at its start.
* `.git` never comes back, because git runs programs that its settings name.
"""

import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ltrain_instrument.settings import SPOOL

MAX_ENTRIES = 60_000
"""Entries that are read; a sandbox writes fewer."""
MAX_RECOVERED = 64 << 30
"""Bytes of the files of an outbox that a killed runner left; its workspace is not unpacked."""
MAX_REPORT = 1 << 20
"""Bytes of the list of entries that a sandbox left out."""
OMITTED = "omitted"
"""The name of that list."""
OUTBOX_SUFFIX = ".outbox"


@dataclass(slots=True)
class Outbox:
    """The entries of one tar file that a sandbox wrote, as they are unpacked."""

    path: Path
    max_bytes: int
    """Most bytes of all files together."""
    omitted: list[str] = field(default_factory=list)
    """Entries that were not unpacked, each with the reason."""

    def unpack(self, folders: dict[str, Path]) -> None:
        """Write the entries below each name into the folder of that name; remove the file."""
        links: list[tuple[Path, str]] = []
        try:
            with tarfile.open(self.path, "r:") as archive:
                for member, inner in self._read_members(archive):
                    target = folders.get(inner.parts[0])
                    if target is not None and len(inner.parts) > 1:
                        path = target.joinpath(*inner.parts[1:])
                        self._write(archive, member, path, links)
        except (tarfile.TarError, OSError, ValueError) as error:
            self.omitted.append(f"the rest: {error}")
        for path, link in links:
            if not os.path.lexists(path):
                path.symlink_to(link)
        self.path.unlink()

    def _read_members(
        self, archive: tarfile.TarFile
    ) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath]]:
        left = self.max_bytes
        for number, member in enumerate(archive):
            left -= member.size
            if number == MAX_ENTRIES or left < -MAX_REPORT:
                self.omitted.append("the rest: too large")
                return
            if member.name == OMITTED:
                self._read_report(archive, member)
            elif reason := _name_fault(member.name):
                self.omitted.append(f"{member.name[:200]!r}: {reason}")
            else:
                yield member, PurePosixPath(member.name)

    def _read_report(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        file = archive.extractfile(member)
        names = json.loads(file.read(MAX_REPORT)) if file is not None else []
        self.omitted += [str(name) for name in names] if isinstance(names, list) else []

    def _write(
        self,
        archive: tarfile.TarFile,
        member: tarfile.TarInfo,
        path: Path,
        links: list[tuple[Path, str]],
    ) -> None:
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
        elif member.issym():
            if _leads_out(member, depth=len(PurePosixPath(member.name).parts) - 2):
                self.omitted.append(f"{member.name}: a link to {member.linkname[:200]!r}")
            else:
                links.append((path, member.linkname))
        elif member.isreg() and (file := archive.extractfile(member)) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o700 if member.mode & 0o100 else 0o600
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with open(descriptor, "wb") as target:
                while chunk := file.read(1 << 20):
                    target.write(chunk)
        else:
            self.omitted.append(f"{member.name}: not a file, folder or link")


def recover_spool(home: Path) -> None:
    """Unpack the spans of ended attempts whose runner was killed; the outboxes are in `home`."""
    for path in home.glob(f"*{OUTBOX_SUFFIX}"):
        Outbox(path, MAX_RECOVERED).unpack({SPOOL: home / SPOOL})


def _name_fault(name: str) -> str:
    parts = name.split("/")
    if not all(parts) or {".", ".."} & set(parts) or "\0" in name:
        return "a bad name"
    return "a folder of git" if ".git" in parts else ""


def _leads_out(member: tarfile.TarInfo, depth: int) -> bool:
    """Return whether a link that is `depth` folders deep may lead out of the workspace."""
    parts = member.linkname.split("/")
    ups = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    return member.linkname.startswith("/") or ups > depth or ".." in parts[ups:]
