"""The files of one version: its `policy.json`, its artifact, and the checkpoint that it names."""

from pathlib import Path

from ltrain_train.errors import BadModel
from ltrain_transforms.file_digests import describe_files, find_damage, read_sealed, seal
from ltrain_transforms.policy_file import LEDGER, POLICY_MANIFEST, PolicyVersion, list_versions

LINEAGE_FILES = frozenset({POLICY_MANIFEST, LEDGER})
"""Files of a version that are not of the artifact: they record its origin."""


def read_manifest(directory: Path) -> PolicyVersion:
    """Return the content of the `policy.json` in a version's directory."""
    try:
        return PolicyVersion.model_validate(read_sealed(directory / POLICY_MANIFEST))
    except ValueError as error:
        raise BadModel(
            f"'{directory / POLICY_MANIFEST}' is damaged: {str(error).splitlines()[0]}. Restore "
            "the file from a copy, or remove the folder of this version."
        ) from error


def write_manifest(directory: Path, version: PolicyVersion) -> None:
    """Write the `policy.json` with the digests of all files, and make the files read-only."""
    files = {file.name: file for file in list_files(directory) if file.name != POLICY_MANIFEST}
    for file in files.values():
        file.chmod(0o444)
    complete = version.model_copy(update={"files": describe_files(files)})
    (directory / POLICY_MANIFEST).write_text(seal(complete.model_dump(mode="json")))
    (directory / POLICY_MANIFEST).chmod(0o444)


def list_files(directory: Path) -> list[Path]:
    """Return the files of a version, without hidden ones."""
    return sorted(file for file in directory.iterdir() if file.is_file() and file.name[0] != ".")


def artifact_files(directory: Path) -> list[Path]:
    """Return the files of a version's artifact."""
    return [file for file in list_files(directory) if file.name not in LINEAGE_FILES]


def require_undamaged(directory: Path) -> None:
    """Check the files of a version by size and digest.

    Raises:
        BadModel: when a file differs from its entry in the `policy.json`, or is missing.
    """
    manifest = read_manifest(directory)
    if damage := find_damage(directory, manifest.files):
        others = [v for v in list_versions(directory.parent) if v != manifest.version]
        raise BadModel(
            f"'{directory}' is damaged: {damage}. Restore the file from a copy, or select another "
            f"version with `ltrain policy use {manifest.policy}@N`; other versions: "
            f"{', '.join(map(str, others)) or 'none'}."
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
