"""Sizes and SHA-256 digests of an artifact's files: listed in its manifest, and compared with it.

Policy versions, checkpoints and datasets list their files in their manifests. A manifest also has
a digest of itself.
"""

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

THREADS = min(8, os.cpu_count() or 1)
"""Files that are read at the same time: hashing releases Python's lock."""
SHOWN = 12
"""Hexadecimal digits of a digest in a message."""
SEAL = "sha256"
"""The key of a manifest's own digest: the SHA-256 of the JSON of its other keys."""

_known: dict[tuple[int, ...], str] = {}
"""The digests that this process has computed, by device, inode, size, and times of change."""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """One file of an artifact."""

    size: int
    """Size in bytes."""
    sha256: str


def describe_files(files: Mapping[str, Path]) -> dict[str, FileDigest]:
    """Return the size and the digest of each file, by the names that it is stored under.

    A process reads each file once, until the file changes.
    """
    with ThreadPoolExecutor(THREADS) as threads:
        return dict(zip(files, threads.map(_describe_file, files.values()), strict=True))


def find_damage(folder: Path, files: Mapping[str, FileDigest]) -> str | None:
    """Return the first file in `folder` that differs from its listed size or digest, and how.

    Args:
        folder: the folder of the artifact.
        files: the files that its manifest lists, by their paths in the folder.

    Returns:
        a clause for an error message, or None if all files are as they were written.
    """
    for name, expected in files.items():
        file = folder / name
        size = file.stat().st_size if file.is_file() else None
        if size != expected.size:
            has = "is missing" if size is None else f"has {size} bytes"
            return f"{name} {has}, expected {expected.size} bytes"
    found = describe_files({name: folder / name for name in files})
    for name, expected in files.items():
        if found[name] != expected:
            has = f"has the SHA-256 {found[name].sha256[:SHOWN]}…"
            return f"{name} {has}, expected {expected.sha256[:SHOWN]}…"
    return None


def seal(content: Mapping[str, Any]) -> str:
    """Return the JSON text of a manifest, with the digest of its content."""
    plain = json.loads(json.dumps(content, default=str))
    return json.dumps({**plain, SEAL: _digest(plain)}, indent=2, sort_keys=True) + "\n"


def read_sealed(manifest: Path) -> dict[str, Any]:
    """Return the content of a manifest, after comparing it with its own digest.

    A manifest of an older version of ltrain, or of another program, may have no digest.

    Raises:
        OSError: when it cannot be read.
        ValueError: when it is not a JSON object, or differs from its digest.
    """
    content = json.loads(manifest.read_bytes())
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    expected = content.pop(SEAL, None)
    if expected is not None and (found := _digest(content)) != expected:
        raise ValueError(
            f"its content has the SHA-256 {found[:SHOWN]}…, expected {str(expected)[:SHOWN]}…; "
            f"after a change by hand, remove the key `{SEAL}`"
        )
    return content


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def _describe_file(file: Path) -> FileDigest:
    with file.open("rb") as stream:
        status = os.fstat(stream.fileno())
        key = (
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
        )  # fmt: skip
        if key not in _known:
            _known[key] = file_digest(stream, "sha256").hexdigest()
    return FileDigest(size=status.st_size, sha256=_known[key])
