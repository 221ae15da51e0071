"""Policies on disk: immutable versions in `policies/<name>/v<N>/`, and the current version.

* A version is complete or absent: its directory, with `policy.json` in it, is renamed into place.
* Version numbers increase by one and are never reused.
* `current` is the version that every server has loaded; it changes by an atomic rename.
* A gateway holds a shared flock on the `policy.json` of the version that it serves, which keeps the
  version from being removed.
* A removed version leaves its `policy.json` and its ledger in `removed/v<N>/`, for the lineage of
  others.
"""

import errno
import re
import shutil
import time
from hashlib import file_digest
from pathlib import Path

from pydantic import ValidationError

from ltrain_instrument.errors import UnknownName
from ltrain_instrument.files import (
    make_private,
    move_into_place,
    sibling_path,
    temporary_directory,
    write_file,
)
from ltrain_train.errors import BadModel, FolderNotEmpty, PolicyExists, UnknownVersion
from ltrain_train.policy.weights import check_model, check_same_tensors
from ltrain_train.processes import hold_file, is_held, require_space
from ltrain_transforms.policy_file import (
    LEDGER,
    POLICY_MANIFEST,
    REMOVED,
    PolicyFile,
    PolicyVersion,
)

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A policy's name is also a folder name, the model name in requests, and a span attribute."""


LINEAGE_FILES = frozenset({POLICY_MANIFEST, LEDGER})
"""Files of a version that are not of the model: they say where it comes from."""


class Policies:
    """The policies of one home."""

    def __init__(self, home: Path) -> None:
        self.directory = home / "policies"

    def names(self) -> list[str]:
        """Return the names of the policies that have a version."""
        folders = self.directory.iterdir() if self.directory.is_dir() else ()
        return sorted(folder.name for folder in folders if _versions(folder))

    def versions(self, name: str) -> list[int]:
        """Return the policy's versions, oldest first; empty if there is no such policy."""
        return _versions(self._folder(name))

    def register(self, name: str, model: Path) -> int:
        """Copy a model directory as version 0 and make it current; return 0.

        A second call with the same model changes nothing.

        Raises:
            BadModel: when the directory is not a complete model.
            PolicyExists: when version 0 is another model.
        """
        check_model(model)
        if self.versions(name):
            self._require_same_model(name, model)
            return 0
        draft = self.draft(name)
        draft.mkdir()
        for file in _model_files(model):
            shutil.copyfile(file, draft / file.name)
        self._publish_draft(
            draft, PolicyVersion(policy=name, version=0, created=time.time(), files={})
        )
        self.set_current(name, 0)
        return 0

    def publish_files(
        self,
        name: str,
        directory: Path,
        *,
        parent: int,
        dataset: str,
        recipe: str,
        base: int | None = None,
        checkpoint: Path | None = None,
    ) -> int:
        """Move a finished model directory to the policy's next version and return its number.

        Args:
            name: the policy.
            directory: the model directory, on the same disk as the policies.
            parent: the version that was trained.
            dataset: id of the dataset it was trained on.
            recipe: digest of the recipe.
            base: the version whose weights the checkpoint needs.
            checkpoint: the learner's checkpoint of this version, in the home.

        Raises:
            BadModel: when the model does not fit the policy's version 0, or the checkpoint is in
                another place than `find_checkpoint` allows.
            UnknownVersion: when the parent does not exist.
        """
        self.path(name, parent)
        check_model(directory)
        check_same_tensors(directory, self.path(name, 0))
        version = PolicyVersion(
            policy=name,
            version=self.latest(name) + 1,
            parent=parent,
            dataset=dataset,
            recipe=recipe,
            base=base,
            checkpoint=None if checkpoint is None else self._relative(checkpoint),
            created=time.time(),
            files={},
        )
        self._checkpoint_folder(version)
        return self._publish_draft(directory, version)

    def find_checkpoint(self, name: str, version: int) -> tuple[int, Path] | None:
        """Return the base and the checkpoint of a version; None if one is not on disk any more.

        Raises:
            BadModel: when the checkpoint is not `runs/<run>/checkpoints/<number>` of the home.
        """
        manifest = self.read_version(name, version)
        checkpoint = self._checkpoint_folder(manifest)
        if checkpoint is None or manifest.base not in self.versions(name):
            return None
        return (manifest.base, checkpoint) if checkpoint.is_dir() else None

    def draft(self, name: str) -> Path:
        """Return an unused path for a draft of a version, and remove those of dead processes."""
        return sibling_path(self._folder(name) / "draft")

    def path(self, name: str, version: int) -> Path:
        """Return the absolute path of a version's directory.

        Raises:
            UnknownVersion: when the version does not exist.
        """
        if version not in self.versions(name):
            raise self._unknown_version(name, version)
        return (self._folder(name) / f"v{version}").absolute()

    def read_version(self, name: str, version: int) -> PolicyVersion:
        """Return the content of a version's `policy.json`."""
        return _read_manifest(self.path(name, version))

    def verify(self, name: str, version: int) -> Path:
        """Check the files of a version by size, and its tensors by name and shape.

        Returns:
            the version's directory.

        Raises:
            UnknownVersion: when the version does not exist.
            BadModel: when it is incomplete or does not fit version 0.
        """
        path = self.path(name, version)
        for file, expected in _read_manifest(path).files.items():
            size = (path / file).stat().st_size if (path / file).is_file() else None
            if size != expected.size:
                has = "is missing" if size is None else f"has {size} bytes"
                raise BadModel(
                    f"'{path}' is not complete: {file} {has}, expected {expected.size} bytes. "
                    "Restore the file, or publish another version."
                )
        check_same_tensors(path, self.path(name, 0))
        return path

    def latest(self, name: str) -> int:
        """Return the number of the newest version.

        Raises:
            UnknownVersion: when the policy has no version.
        """
        versions = self.versions(name)
        if not versions:
            raise self._unknown_version(name, None)
        return versions[-1]

    def current(self, name: str) -> int:
        """Return the version that every server has loaded.

        Raises:
            UnknownVersion: when the policy has no version, or none of several is current.
        """
        current = self.find_current(name)
        if current is not None:
            return current
        if not self.versions(name):
            raise self._unknown_version(name, None)
        raise UnknownVersion(
            f"No version of policy '{name}' is current: '{self._folder(name) / 'current'}' is "
            f"missing. Run `ltrain policy use {name}@{self.latest(name)}`, or use another version: "
            f"{', '.join(map(str, self.versions(name)))}."
        )

    def find_current(self, name: str) -> int | None:
        """Return the version that every server has loaded; None if none is recorded.

        Version 0 alone is current, also if its registration was killed before it recorded that.
        """
        try:
            return int((self._folder(name) / "current").read_text())
        except FileNotFoundError:
            return 0 if self.versions(name) == [0] else None

    def set_current(self, name: str, version: int) -> None:
        """Record that every server has loaded a version.

        Raises:
            UnknownVersion: when the version does not exist.
        """
        self.path(name, version)
        write_file(self._folder(name) / "current", f"{version}\n")

    def hold(self, name: str, version: int) -> int:
        """Return a descriptor that marks a version as served, until it is closed.

        Raises:
            UnknownVersion: when the version does not exist.
        """
        return hold_file(self.path(name, version) / POLICY_MANIFEST)

    def is_served(self, name: str, version: int) -> bool:
        """Return whether a gateway serves the version."""
        return is_held(self.path(name, version) / POLICY_MANIFEST)

    def remove(self, name: str, version: int) -> None:
        """Remove a version from the policy; `sweep` then removes its files.

        Raises:
            UnknownVersion: when the version does not exist.
        """
        path = self.path(name, version)
        path.rename(make_private(self._folder(name) / REMOVED) / path.name)

    def sweep(self, name: str) -> int:
        """Remove the files and checkpoints of removed versions; return the bytes that this frees.

        It also removes what an earlier sweep that was killed has left.

        Raises:
            BadModel: when a removed version names a checkpoint that `find_checkpoint` refuses.
        """
        freed = 0
        for manifest in (self._folder(name) / REMOVED).glob(f"v*/{POLICY_MANIFEST}"):
            checkpoint = self._checkpoint_folder(_read_manifest(manifest.parent))
            for file in _files(manifest.parent):
                if file.name not in LINEAGE_FILES:
                    freed += file.stat().st_size
                    file.unlink()
            if checkpoint is not None and checkpoint.is_dir():
                files = (file for file in checkpoint.rglob("*") if file.is_file())
                freed += sum(file.stat().st_size for file in files)
                shutil.rmtree(checkpoint)
        return freed

    def export(self, name: str, version: int, out: Path) -> int:
        """Copy the model files of a version to the folder `out`, and return their bytes.

        Raises:
            UnknownVersion: when the version does not exist.
            BadModel: when it is incomplete.
            FolderNotEmpty: when `out` has files.
        """
        source = self.verify(name, version)
        if out.exists() and not (out.is_dir() and not any(out.iterdir())):
            raise FolderNotEmpty(
                f"'{out}' exists and is not an empty folder. Name a new folder for the model."
            )
        files = _model_files(source)
        size = sum(file.stat().st_size for file in files)
        require_space(out.absolute(), size, f"version {version} of '{name}'")
        with temporary_directory(out) as draft:
            for file in files:
                shutil.copyfile(file, draft / file.name)
            move_into_place(draft, out)
        return size

    def _checkpoint_folder(self, version: PolicyVersion) -> Path | None:
        """Return the folder of a version's checkpoint; it is read and removed, so it is checked."""
        if version.checkpoint is None:
            return None
        home, relative = self.directory.parent, Path(version.checkpoint)
        runs, folder = (home / "runs").resolve(), (home / relative).resolve()
        inside = folder.relative_to(runs).parts if folder.is_relative_to(runs) else ()
        match inside:
            case (_, "checkpoints", number) if number.isdecimal() and not relative.is_absolute():
                return home / relative
        raise BadModel(
            f"Version {version.version} of '{version.policy}' names the checkpoint "
            f"'{version.checkpoint}' in its {POLICY_MANIFEST}, which is not a folder "
            f"runs/<run>/checkpoints/<number> in '{home}'. Correct `checkpoint` there, or set it "
            "to null."
        )

    def _relative(self, path: Path) -> str:
        return path.absolute().relative_to(self.directory.parent.absolute()).as_posix()

    def _folder(self, name: str) -> Path:
        if not NAME_PATTERN.fullmatch(name):
            raise BadModel(
                f"'{name}' is not a valid policy name. Use letters, digits, '.', '_' and '-', "
                "with a letter or digit first."
            )
        return self.directory / name

    def _publish_draft(self, draft: Path, version: PolicyVersion) -> int:
        files = {
            file.name: _policy_file(file) for file in _files(draft) if file.name != POLICY_MANIFEST
        }
        version = version.model_copy(update={"files": files})
        (draft / POLICY_MANIFEST).write_text(version.model_dump_json(indent=2) + "\n")
        for file in _files(draft):
            file.chmod(0o444)
        path = self._folder(version.policy) / f"v{version.version}"
        try:
            move_into_place(draft, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise PolicyExists(
                f"'{path}' exists already, so the new version cannot take its place. If it has no "
                f"{POLICY_MANIFEST}, it is half-written: remove it and run the same command again."
            ) from error
        return version.version

    def _require_same_model(self, name: str, model: Path) -> None:
        registered = self.read_version(name, 0).files
        files = {file.name: _policy_file(file) for file in _model_files(model)}
        if files != registered:
            raise PolicyExists(
                f"Policy '{name}' was made from another model than '{model}'. "
                "Choose another policy name for the model, or serve the policy without a model."
            )

    def _unknown_version(self, name: str, version: int | None) -> UnknownVersion | UnknownName:
        versions = self.versions(name)
        if not versions:
            names = ", ".join(self.names()) or "none yet; `ltrain serve MODEL` makes one"
            return UnknownVersion(f"Unknown policy '{name}'. Policies: {names}.")
        folder = self._folder(name) / f"v{version}"
        if folder.is_dir():
            return UnknownVersion(
                f"'{folder}' is half-written: it has no {POLICY_MANIFEST}. Remove it; "
                f"finished versions of '{name}': {', '.join(map(str, versions))}."
            )
        return UnknownVersion(
            f"Policy '{name}' has no version {version}. "
            f"Choose from: {', '.join(map(str, versions))}."
        )


def _versions(folder: Path) -> list[int]:
    manifests = folder.glob(f"v*/{POLICY_MANIFEST}")
    return sorted(int(file.parent.name[1:]) for file in manifests if file.parent.name[1:].isdigit())


def _read_manifest(directory: Path) -> PolicyVersion:
    try:
        return PolicyVersion.model_validate_json((directory / POLICY_MANIFEST).read_bytes())
    except ValidationError as error:
        raise BadModel(f"'{directory / POLICY_MANIFEST}' cannot be read: {error}.") from error


def _files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.iterdir() if file.is_file() and file.name[0] != ".")


def _model_files(directory: Path) -> list[Path]:
    return [file for file in _files(directory) if file.name not in LINEAGE_FILES]


def _policy_file(file: Path) -> PolicyFile:
    with file.open("rb") as stream:
        return PolicyFile(
            size=file.stat().st_size, sha256=file_digest(stream, "sha256").hexdigest()
        )
