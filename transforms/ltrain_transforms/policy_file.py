"""`policy.json`: the manifest of a policy version, with its files and its parent.

`ltrain_train` writes it; `ltrain build` and `ltrain show` read it. docs/policies.md describes the
format.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ltrain_instrument.files import write_file
from ltrain_transforms.artifacts import Artifact
from ltrain_transforms.errors import BadPolicyFile
from ltrain_transforms.file_digests import FileDigest, read_sealed

POLICY_MANIFEST = "policy.json"
LEDGER = "rollouts.parquet"
"""The rollouts that trained a version, beside its `policy.json`: see `policy_lineage`."""
PROMOTIONS = "promotions.jsonl"
"""A line for each time at which another version of a policy became current."""
TINKER_FILE = "tinker.json"
"""File of a version with the place of its weights at a Tinker server."""
REMOVED = "removed"
"""Folder of a policy with what is kept of removed versions, which are parents of others."""
BASE_FILES = {
    "model": ("config.json", "*.safetensors", "*.safetensors.index.json", TINKER_FILE),
    "tokenizer": ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "*.tiktoken"),
    "template": ("chat_template.*",),
}
"""The files of a model directory that each digest of `base_digests` covers. A chat template without
a file of its own is in tokenizer_config.json."""


class PolicyVersion(BaseModel):
    """The contents of `policy.json`."""

    model_config = ConfigDict(frozen=True)

    policy: str
    version: int
    artifact: Artifact = "weights"
    parent: int | None = None
    """The parent version, which training continued."""
    base: int | None = None
    """The version with the weights below an adapter, which the learner loads before it loads
    the checkpoint."""
    checkpoint: str | None = None
    """The learner's checkpoint: a folder, relative to the home."""
    dataset: str | None = None
    recipe: str | None = None
    created: float
    """Unix seconds."""
    files: dict[str, FileDigest]

    @property
    def digest(self) -> str:
        """A digest of all files."""
        return _digest(self.files)

    @property
    def weights_version(self) -> int:
        """The version with the full weights that a server loads: an adapter's base, or itself."""
        return self.base if self.artifact == "adapter" and self.base is not None else self.version

    @property
    def size(self) -> int:
        """Size of all files, in bytes."""
        return sum(file.size for file in self.files.values())

    @property
    def created_at(self) -> datetime:
        """When the version was created."""
        return datetime.fromtimestamp(self.created, UTC)

    def base_digests(self) -> dict[str, str]:
        """Return the digests of the model, the tokenizer and the chat template."""
        parts = {
            part: {
                name: file
                for name, file in self.files.items()
                if any(fnmatch(name, pattern) for pattern in patterns)
            }
            for part, patterns in BASE_FILES.items()
        }
        return {part: _digest(files) for part, files in parts.items() if files}


def read_base_digests(folder: Path) -> dict[str, str]:
    """Return the base digests of the policy in `folder`; empty if its version 0 is not there."""
    with suppress(OSError, ValueError):  # it is served elsewhere, or its manifest is damaged
        manifest = read_sealed(folder / "v0" / POLICY_MANIFEST)
        return PolicyVersion.model_validate(manifest).base_digests()
    return {}


def read_promotions(folder: Path) -> list[tuple[int, int]]:
    """Return when versions of the policy in `folder` became current, in Unix ns, oldest first.

    Without a record, each version became current when it was created.

    Raises:
        BadPolicyFile: when the record, or a `policy.json`, cannot be read.
    """
    record = folder / PROMOTIONS
    if record.exists():
        return sorted(_read_promotion(record, line) for line in record.read_text().splitlines())
    paths = [*folder.glob(f"v*/{POLICY_MANIFEST}"), *folder.glob(f"{REMOVED}/v*/{POLICY_MANIFEST}")]
    versions = map(read_version, paths)
    return sorted((int(each.created * 1e9), each.version) for each in versions)


def _read_promotion(record: Path, line: str) -> tuple[int, int]:
    try:
        fields = json.loads(line)
        return int(fields["at"]), int(fields["version"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadPolicyFile(
            f"{record} has a line that is not a promotion: {line!r}. Remove the line."
        ) from error


def write_promotion(folder: Path, at: int, version: int) -> None:
    """Record that a version became current at a time, in Unix ns, unless it was current before."""
    promotions = read_promotions(folder)
    if not promotions or promotions[-1][1] != version:
        promotions.append((at, version))
    lines = (json.dumps({"at": time, "version": number}) for time, number in promotions)
    write_file(folder / PROMOTIONS, "".join(f"{line}\n" for line in lines))


def read_lineage(folder: Path, number: int) -> Iterator[PolicyVersion | int]:
    """Yield a version of the policy in `folder` and its ancestors, along the `parent` links.

    The number of a version without a `policy.json` ends the lineage.

    Raises:
        BadPolicyFile: when a `policy.json` cannot be read.
    """
    visited: set[int] = set()
    ancestor: int | None = number
    while ancestor is not None and ancestor not in visited:
        visited.add(ancestor)
        directory = find_version(folder, ancestor)
        if directory is None:
            yield ancestor
            return
        version = read_version(directory / POLICY_MANIFEST)
        yield version
        ancestor = version.parent


def read_version(path: Path) -> PolicyVersion:
    """Read a `policy.json`.

    Raises:
        BadPolicyFile: when it cannot be read.
    """
    try:
        return PolicyVersion.model_validate(read_sealed(path))
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise BadPolicyFile(
            f"{path} is not a valid policy.json ({first}); docs/policies.md describes the format. "
            "Publish the version again, or remove its folder."
        ) from error


def has_version(folder: Path, version: int) -> bool:
    """Return whether a policy's folder has a version."""
    return (folder / f"v{version}" / POLICY_MANIFEST).exists()


def list_versions(folder: Path) -> list[int]:
    """Return the versions in a policy's folder, oldest first; empty if there is no such folder."""
    return sorted(number for number in _numbers(folder) if has_version(folder, number))


def latest_version(folder: Path) -> int | None:
    """Return the newest version in a policy's folder; None if there is none."""
    newest_first = sorted(_numbers(folder), reverse=True)
    return next((number for number in newest_first if has_version(folder, number)), None)


def find_version(folder: Path, number: int) -> Path | None:
    """Return the directory with the `policy.json` of a version, also of a removed one."""
    directories = (folder / f"v{number}", folder / REMOVED / f"v{number}")
    return next((each for each in directories if (each / POLICY_MANIFEST).is_file()), None)


def versions_trained_on(policies: Path, dataset: str) -> list[str]:
    """Return the versions below `policies` that were trained on a dataset, as `name@number`."""
    manifests = sorted(
        [
            *policies.glob(f"*/v*/{POLICY_MANIFEST}"),
            *policies.glob(f"*/{REMOVED}/v*/{POLICY_MANIFEST}"),
        ]
    )
    versions = (read_version(path) for path in manifests)
    return [f"{each.policy}@{each.version}" for each in versions if each.dataset == dataset]


def _numbers(folder: Path) -> Iterator[int]:
    names = os.listdir(folder) if folder.is_dir() else ()
    return (int(name[1:]) for name in names if name[0] == "v" and name[1:].isdigit())


def _digest(files: dict[str, FileDigest]) -> str:
    lines = (f"{name} {file.sha256}" for name, file in sorted(files.items()))
    return sha256("\n".join(lines).encode()).hexdigest()
