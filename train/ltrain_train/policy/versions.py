"""Policies on disk: immutable versions in `policies/<name>/v<N>/`, and the current version.

* A version is complete or absent: its directory, with `policy.json` in it, is renamed into place.
* Version numbers increase by one and are never reused.
* `current` is the version that every server has loaded; it changes by an atomic rename.
* `promotions.jsonl` has the times at which versions became current.
* A gateway holds a shared flock on the `policy.json` of the version that it serves, and a run on
  that of its reference, which keeps the version from being removed.
* A removed version leaves its `policy.json` and its ledger in `removed/v<N>/`, for the lineage of
  others.
"""

import errno
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ltrain_instrument.errors import UnknownName
from ltrain_instrument.files import (
    hold_file,
    is_held,
    make_private,
    move_into_place,
    sibling_path,
    temporary_directory,
    write_file,
)
from ltrain_train.errors import BadModel, FolderNotEmpty, PolicyExists, UnknownVersion
from ltrain_train.policy.artifact import check_artifact, find_artifact, source_files
from ltrain_train.policy.manifest import (
    artifact_files,
    checkpoint_folder,
    read_manifest,
    require_undamaged,
    write_manifest,
)
from ltrain_train.policy.weights import missing_model
from ltrain_train.processes import require_space
from ltrain_transforms import policy_file
from ltrain_transforms.file_digests import describe_files
from ltrain_transforms.policy_file import POLICY_MANIFEST, REMOVED, PolicyVersion

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A policy's name is also a folder name, the model name in requests, and a span attribute."""


class Policies:
    """The policies of one home."""

    def __init__(self, home: Path) -> None:
        self.directory = home / "policies"

    def names(self) -> list[str]:
        """Return the names of the policies that have a version."""
        folders = self.directory.iterdir() if self.directory.is_dir() else ()
        return sorted(folder.name for folder in folders if policy_file.list_versions(folder))

    def versions(self, name: str) -> list[int]:
        """Return the policy's versions, oldest first; empty if there is no such policy."""
        return policy_file.list_versions(self._folder(name))

    def register(self, name: str, source: Path) -> int:
        """Copy a model directory, or the text file of a prompt, as version 0; return 0.

        It becomes current. A second call with the same source changes nothing.

        Raises:
            BadModel: when the source is incomplete.
            PolicyExists: when version 0 is another one.
        """
        check_artifact(source, None)
        if self.versions(name):
            self._require_same_source(name, source)
            return 0
        artifact = find_artifact(source)
        version = PolicyVersion(
            policy=name, version=0, artifact=artifact, created=time.time(), files={}
        )
        with self._copied(name, source) as draft:
            self._register_draft(draft, version)
        self.promote(name, 0)
        return 0

    def register_new(self, name: str, source: Path) -> None:
        """Register a source of the command line, unless the policy has versions.

        Raises:
            BadModel: when the source is incomplete, or does not exist.
        """
        if not self.versions(name):
            self.register(name, source)
        elif not source.exists():
            raise BadModel(
                f"{missing_model(source)} Policy '{name}' has versions already, so it also works "
                "without a model."
            )

    def add(self, name: str, source: Path, *, parent: int | None = None) -> int:
        """Copy a model, an adapter or a prompt as the policy's next version; return its number.

        Args:
            source: a directory, or the text file of a prompt.
            parent: the version that it was made from; an adapter is one of the parent's weights.
                Default: the current version.

        Raises:
            BadModel: when the source is incomplete, or does not fit the parent.
            UnknownVersion: when the policy or the parent does not exist.
        """
        parent = self.current(name) if parent is None else parent
        base = self.read_version(name, parent).weights_version
        check_artifact(source, self.path(name, base))
        adapted = base if find_artifact(source) == "adapter" else None
        with self._copied(name, source) as draft:
            return self.register_files(name, draft, parent=parent, base=adapted)

    def register_files(
        self,
        name: str,
        directory: Path,
        *,
        parent: int,
        dataset: str | None = None,
        recipe: str | None = None,
        base: int | None = None,
        checkpoint: Path | None = None,
    ) -> int:
        """Move the directory of an artifact to the policy's next version and return its number.

        Args:
            directory: a model, an adapter or a prompt, on the same disk as the policies.
            parent: the version before the training.
            dataset: id of the dataset it was trained on.
            recipe: digest of the recipe.
            base: the version whose weights an adapter, and the checkpoint, need.

        Raises:
            BadModel: when the artifact does not fit its base or the policy's version 0, or the
                checkpoint is in another place than `find_checkpoint` allows.
            UnknownVersion: when the parent or the base does not exist.
        """
        self.path(name, parent)
        artifact = find_artifact(directory)
        weights = (base or 0) if artifact == "adapter" else 0
        check_artifact(directory, self.path(name, weights))
        version = PolicyVersion(
            policy=name,
            version=self.latest(name) + 1,
            artifact=artifact,
            parent=parent,
            dataset=dataset,
            recipe=recipe,
            base=weights if artifact == "adapter" else base,
            checkpoint=None if checkpoint is None else self._relative(checkpoint),
            created=time.time(),
            files={},
        )
        checkpoint_folder(self.directory.parent, version)
        return self._register_draft(directory, version)

    def find_checkpoint(self, name: str, version: int) -> tuple[int, Path] | None:
        """Return the base and the checkpoint of a version; None if one is not on disk any more.

        Raises:
            BadModel: when the checkpoint is not `runs/<run>/checkpoints/[<policy>/]<number>` of the
                home.
        """
        manifest = self.read_version(name, version)
        checkpoint = checkpoint_folder(self.directory.parent, manifest)
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
        if not policy_file.has_version(self._folder(name), version):
            raise self._unknown_version(name, version)
        return (self._folder(name) / f"v{version}").absolute()

    def weights_path(self, name: str, version: int) -> Path:
        """Return the directory of the full weights of a version: of an adapter, those of its base.

        Raises:
            UnknownVersion: when the version, or the base of its adapter, does not exist.
        """
        return self.path(name, self.read_version(name, version).weights_version)

    def read_version(self, name: str, version: int) -> PolicyVersion:
        """Return the content of a version's `policy.json`."""
        return read_manifest(self.path(name, version))

    def verify(self, name: str, version: int) -> Path:
        """Check the files of a version by size and digest, and its tensors by name and shape.

        Returns:
            the version's directory.

        Raises:
            UnknownVersion: when the version, or the base of its adapter, does not exist.
            BadModel: when a file is damaged or missing, or it does not fit version 0 or its base.
        """
        path = self.path(name, version)
        require_undamaged(path)
        base = self.path(name, read_manifest(path).weights_version)
        if base == path:
            base = self.path(name, 0)
        else:
            require_undamaged(base)
        check_artifact(path, base)
        return path

    def latest(self, name: str) -> int:
        """Return the number of the newest version.

        Raises:
            UnknownVersion: when the policy has no version.
        """
        version = policy_file.latest_version(self._folder(name))
        if version is None:
            raise self._unknown_version(name, None)
        return version

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
            f"missing or damaged. Run `ltrain policy use {name}@{self.latest(name)}`, or use "
            f"another version: {', '.join(map(str, self.versions(name)))}."
        )

    def find_current(self, name: str) -> int | None:
        """Return the version that every server has loaded; None if none is recorded.

        Version 0 alone is current, also if its registration was killed before it recorded that.
        """
        try:
            return int((self._folder(name) / "current").read_text())
        except (FileNotFoundError, ValueError):  # ValueError: the file is damaged
            return 0 if self.versions(name) == [0] else None

    def promote(self, name: str, version: int) -> None:
        """Record that every server has loaded a version.

        Raises:
            UnknownVersion: when the version does not exist.
        """
        self.path(name, version)
        policy_file.write_promotion(self._folder(name), time.time_ns(), version)
        write_file(self._folder(name) / "current", f"{version}\n")

    def hold(self, name: str, version: int) -> int:
        """Return a descriptor that marks a version as in use, until it is closed.

        Raises:
            UnknownVersion: when the version does not exist.
        """
        return hold_file(self.path(name, version) / POLICY_MANIFEST)

    def is_held(self, name: str, version: int) -> bool:
        """Return whether a gateway serves the version, or a run has it as its reference."""
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
            checkpoint = checkpoint_folder(self.directory.parent, read_manifest(manifest.parent))
            for file in artifact_files(manifest.parent):
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
            BadModel: when it is damaged.
            FolderNotEmpty: when `out` has files.
        """
        source = self.verify(name, version)
        require_empty(out)
        files = artifact_files(source)
        size = sum(file.stat().st_size for file in files)
        require_space(out.absolute(), size, f"version {version} of '{name}'")
        with temporary_directory(out) as draft:
            for file in files:
                shutil.copyfile(file, draft / file.name)
            move_into_place(draft, out)
        return size

    def _relative(self, path: Path) -> str:
        return path.absolute().relative_to(self.directory.parent.absolute()).as_posix()

    def _folder(self, name: str) -> Path:
        if not NAME_PATTERN.fullmatch(name):
            raise BadModel(
                f"'{name}' is not a valid policy name. Use letters, digits, '.', '_' and '-', "
                "with a letter or digit first."
            )
        return self.directory / name

    def _register_draft(self, draft: Path, version: PolicyVersion) -> int:
        write_manifest(draft, version)
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

    @contextmanager
    def _copied(self, name: str, source: Path) -> Iterator[Path]:
        """Yield a draft with a copy of the source; it is removed unless it becomes a version."""
        with temporary_directory(self._folder(name) / "draft") as draft:
            for stored, file in source_files(source).items():
                shutil.copyfile(file, draft / stored)
            yield draft

    def _require_same_source(self, name: str, source: Path) -> None:
        if describe_files(source_files(source)) != self.read_version(name, 0).files:
            raise PolicyExists(
                f"Policy '{name}' was made from another model than '{source}'. "
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


def require_empty(out: Path) -> None:
    """Check that a version can be exported to `out`.

    Raises:
        FolderNotEmpty: when it has files.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FolderNotEmpty(
            f"'{out}' exists and is not an empty folder. Name a new folder for the model."
        )
