"""The files of one version: its `policy.json`, its artifact, and the checkpoint that it names."""

from collections.abc import Mapping
from hashlib import file_digest
from pathlib import Path

from pydantic import ValidationError

from ltrain_train.errors import BadModel
from ltrain_transforms.policy_file import LEDGER, POLICY_MANIFEST, PolicyFile, PolicyVersion

LINEAGE_FILES = frozenset({POLICY_MANIFEST, LEDGER})
"""Files of a version that are not of the artifact: they record its origin."""


def read_manifest(directory: Path) -> PolicyVersion:
    """Return the content of the `policy.json` in a version's directory."""
    try:
        return PolicyVersion.model_validate_json((directory / POLICY_MANIFEST).read_bytes())
    except ValidationError as error:
        raise BadModel(f"'{directory / POLICY_MANIFEST}' cannot be read: {error}.") from error


def write_manifest(directory: Path, version: PolicyVersion) -> None:
    """Write the `policy.json` with the digests of all files, and make the files read-only."""
    files = {file.name: file for file in list_files(directory) if file.name != POLICY_MANIFEST}
    text = version.model_copy(update={"files": describe_files(files)}).model_dump_json(indent=2)
    (directory / POLICY_MANIFEST).write_text(text + "\n")
    for file in list_files(directory):
        file.chmod(0o444)


def list_files(directory: Path) -> list[Path]:
    """Return the files of a version, without hidden ones."""
    return sorted(file for file in directory.iterdir() if file.is_file() and file.name[0] != ".")


def artifact_files(directory: Path) -> list[Path]:
    """Return the files of a version's artifact."""
    return [file for file in list_files(directory) if file.name not in LINEAGE_FILES]


def describe_files(files: Mapping[str, Path]) -> dict[str, PolicyFile]:
    """Return the size and the digest of each file, by the names that it is stored under."""
    return {name: _describe_file(file) for name, file in files.items()}


def check_sizes(directory: Path, files: Mapping[str, PolicyFile]) -> None:
    """Check the sizes of a version's files."""
    for name, expected in files.items():
        file = directory / name
        size = file.stat().st_size if file.is_file() else None
        if size != expected.size:
            has = "is missing" if size is None else f"has {size} bytes"
            raise BadModel(
                f"'{directory}' is not complete: {name} {has}, expected {expected.size} bytes. "
                "Restore the file, or publish another version."
            )


def checkpoint_folder(home: Path, version: PolicyVersion) -> Path | None:
    """Return the folder of a version's checkpoint; it is read and removed, so it is checked."""
    if version.checkpoint is None:
        return None
    relative = Path(version.checkpoint)
    runs, folder = (home / "runs").resolve(), (home / relative).resolve()
    inside = folder.relative_to(runs).parts if folder.is_relative_to(runs) else ()
    match inside:
        case (_, "checkpoints", *policy, number) if policy in ([], [version.policy]):
            if number.isdecimal() and not relative.is_absolute():
                return home / relative
    raise BadModel(
        f"Version {version.version} of '{version.policy}' names the checkpoint "
        f"'{version.checkpoint}' in its {POLICY_MANIFEST}, which is not a folder "
        f"runs/<run>/checkpoints/[<policy>/]<number> in '{home}'. Correct `checkpoint` there, or "
        "set it to null."
    )


def _describe_file(file: Path) -> PolicyFile:
    with file.open("rb") as stream:
        digest = file_digest(stream, "sha256").hexdigest()
    return PolicyFile(size=file.stat().st_size, sha256=digest)
