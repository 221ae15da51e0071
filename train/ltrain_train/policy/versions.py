"""Policies on disk: `policies/<name>/v<N>/`, each version immutable, and which one is current.

* A version appears whole or not at all: its directory is renamed into place, `policy.json` inside.
* Version numbers rise by one and are never used again.
* `current` is the version that every server has loaded; it moves by an atomic rename.
"""

import contextlib
import os
import re
import shutil
import time
from hashlib import file_digest
from pathlib import Path
from secrets import token_hex

from pydantic import ValidationError

from ltrain_instrument.errors import UnknownName
from ltrain_instrument.private import make_private
from ltrain_train.pid import is_running
from ltrain_train.policy.errors import BadModel, PolicyExists, UnknownVersion
from ltrain_train.policy.weights import check_model, check_same_tensors
from ltrain_transforms.policy_file import POLICY_MANIFEST, PolicyFile, PolicyVersion

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A policy's name is a folder's name, a model's name in requests, and a span attribute."""


class Policies:
    """The policies of one home."""

    def __init__(self, home: Path) -> None:
        self.directory = home / "policies"

    def names(self) -> list[str]:
        """Return the names of policies that have a version."""
        found = self.directory.iterdir() if self.directory.is_dir() else ()
        return sorted(folder.name for folder in found if _versions(folder))

    def versions(self, name: str) -> list[int]:
        """Return the policy's versions, oldest first; none where there is no such policy."""
        return _versions(self._folder(name))

    def register(self, name: str, model: Path) -> int:
        """Copy a model directory as version 0 and make it current; the same model again is fine.

        Raises:
            BadModel: when the directory is not a complete model.
            PolicyExists: when version 0 is another model.
        """
        check_model(model)
        if self.versions(name):
            self._require_same(name, model)
            return 0
        draft = self.draft(name)
        draft.mkdir()
        for file in _files(model):
            shutil.copyfile(file, draft / file.name)
        self._finish(draft, PolicyVersion(policy=name, version=0, created=time.time(), files={}))
        self.set_current(name, 0)
        return 0

    def publish_files(
        self, name: str, directory: Path, *, parent: int, dataset: str, recipe: str
    ) -> int:
        """Move a finished directory to the policy's next version and return its number.

        Raises:
            BadModel: when it does not fit the policy's version 0.
            UnknownVersion: when there is no such parent.
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
            created=time.time(),
            files={},
        )
        return self._finish(directory, version)

    def draft(self, name: str) -> Path:
        """Return a path, not there yet, for a version to be; a dead process's are removed."""
        folder = self._folder(name)
        make_private(folder)
        for left in folder.glob(".draft-*-*"):
            if not is_running(int(left.name.split("-")[1])):
                shutil.rmtree(left)
        return folder / f".draft-{os.getpid()}-{token_hex(4)}"

    def path(self, name: str, version: int) -> Path:
        """Return a version's directory, absolute.

        Raises:
            UnknownVersion: when there is none.
        """
        if version not in self.versions(name):
            raise self._unknown(name, version)
        return (self._folder(name) / f"v{version}").absolute()

    def read(self, name: str, version: int) -> PolicyVersion:
        """Return what `policy.json` says of a version."""
        return _read(self.path(name, version))

    def check(self, name: str, version: int) -> Path:
        """Return a version's directory after a look at every file of it, contents excepted.

        Raises:
            UnknownVersion: when there is none.
            BadModel: when it is not complete, or does not fit version 0.
        """
        path = self.path(name, version)
        for file, said in _read(path).files.items():
            found = (path / file).stat().st_size if (path / file).is_file() else None
            if found != said.size:
                has = "is missing" if found is None else f"has {found} bytes"
                raise BadModel(f"'{path}' is not complete: {file} {has}, not {said.size} bytes.")
        check_same_tensors(path, self.path(name, 0))
        return path

    def latest(self, name: str) -> int:
        """Return the newest version's number.

        Raises:
            UnknownVersion: when the policy has none.
        """
        versions = self.versions(name)
        if not versions:
            raise self._unknown(name, None)
        return versions[-1]

    def current(self, name: str) -> int:
        """Return the version that servers have loaded.

        Raises:
            UnknownVersion: when the policy has none.
        """
        with contextlib.suppress(FileNotFoundError):
            return int((self._folder(name) / "current").read_text())
        raise self._unknown(name, None)

    def set_current(self, name: str, version: int) -> None:
        """Record that servers have loaded a version.

        Raises:
            UnknownVersion: when there is none.
        """
        self.path(name, version)
        draft = self._folder(name) / f".current.{os.getpid()}"
        draft.write_text(f"{version}\n")
        draft.replace(self._folder(name) / "current")

    def _folder(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise BadModel(
                f"'{name}' cannot name a policy: letters, digits, '.', '_' and '-', "
                "a letter or digit first."
            )
        return self.directory / name

    def _finish(self, draft: Path, version: PolicyVersion) -> int:
        files = {
            file.name: _describe(file) for file in _files(draft) if file.name != POLICY_MANIFEST
        }
        version = version.model_copy(update={"files": files})
        (draft / POLICY_MANIFEST).write_text(version.model_dump_json(indent=2) + "\n")
        for file in _files(draft):
            file.chmod(0o444)
        shutil.move(draft, self._folder(version.policy) / f"v{version.version}")
        return version.version

    def _require_same(self, name: str, model: Path) -> None:
        said = self.read(name, 0).files
        given = {
            file.name: _describe(file) for file in _files(model) if file.name != POLICY_MANIFEST
        }
        if given != said:
            raise PolicyExists(
                f"Policy '{name}' was made from another model than '{model}'. "
                "Give the model another policy name, or serve the policy without a model."
            )

    def _unknown(self, name: str, version: int | None) -> UnknownVersion | UnknownName:
        versions = self.versions(name)
        if not versions:
            known = ", ".join(self.names()) or "none yet; `ltrain serve MODEL` makes one"
            return UnknownVersion(f"Unknown policy '{name}'. Policies: {known}.")
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
    found = folder.glob(f"v*/{POLICY_MANIFEST}")
    return sorted(int(file.parent.name[1:]) for file in found if file.parent.name[1:].isdigit())


def _read(directory: Path) -> PolicyVersion:
    try:
        return PolicyVersion.model_validate_json((directory / POLICY_MANIFEST).read_bytes())
    except ValidationError as error:
        raise BadModel(f"'{directory / POLICY_MANIFEST}' cannot be read: {error}.") from error


def _files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.iterdir() if file.is_file() and file.name[0] != ".")


def _describe(file: Path) -> PolicyFile:
    with file.open("rb") as opened:
        return PolicyFile(
            size=file.stat().st_size, sha256=file_digest(opened, "sha256").hexdigest()
        )
