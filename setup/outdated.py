"""`make outdated`: print the locked packages that have a newer release.

Run `python3.11 -m setup.outdated [NAME ...]`; the default is every lock file. pip asks the index
that it is configured for, about the releases that install on this Python and this machine. A
package that is locked at a pre-release is compared with pre-releases.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from setup.pins import canonical, read_lock

FOLDER = Path(__file__).resolve().parent
PRE_RELEASE = re.compile(r"\d(a|b|rc)\d|\.dev\d")
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: 0\n"
"""The metadata of a package in its oldest version, which every release is newer than."""


@dataclass(frozen=True, order=True)
class Outdated:
    """A row of the table."""

    package: str
    locked: str
    newest: str
    lock: str
    """The names of the lock files with this version."""


def find_outdated(locks: Sequence[Path]) -> list[Outdated]:
    """Return the pins of these lock files that are not the newest release."""
    names: dict[tuple[str, str], list[str]] = {}
    for lock in locks:
        for pin in read_lock(lock).items():
            names.setdefault(pin, []).append(lock.name)
    pre_releases = {name for name, version in names if PRE_RELEASE.search(version)}
    newest = newest_releases({name for name, _ in names} - pre_releases)
    newest |= newest_releases(pre_releases, "--pre")
    return sorted(
        Outdated(name, version, newest[name], ", ".join(files))
        for (name, version), files in names.items()
        if newest.get(name, version) not in (version, version.partition("+")[0])
    )


def newest_releases(names: Iterable[str], *options: str) -> dict[str, str]:
    """Return package -> newest release; a package that the index lacks is left out."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            info = Path(folder) / f"{name.replace('-', '_')}-0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(METADATA.format(name=name))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "list", "--outdated"]
        command = [*pip, "--format", "json", "--path", folder, *options]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return {canonical(row["name"]): row["latest_version"] for row in json.loads(done.stdout)}


def format_table(rows: Sequence[Outdated]) -> str:
    """Return the rows as text, each column as wide as its longest cell."""
    cells = [("package", "locked", "newest", "lock file"), *(astuple(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
    return "\n".join(lines)


def main(names: Sequence[str]) -> None:
    locks = [FOLDER / f"{name}.lock" for name in names] or sorted(FOLDER.glob("*.lock"))
    if absent := [lock.stem for lock in locks if not lock.exists()]:
        choices = ", ".join(sorted(lock.stem for lock in FOLDER.glob("*.lock")))
        sys.exit(f"Unknown environment '{absent[0]}'. Choose from: {choices}.")
    rows = find_outdated(locks)
    print(format_table(rows) if rows else "Every locked package is the newest release.")


if __name__ == "__main__":
    main(sys.argv[1:])
