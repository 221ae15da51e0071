"""The workspaces of a run: the copy that an attempt starts from, and its changes.

The diff is computed from the files' contents. Times, sizes and `.gitattributes` of an attempt's
files do not decide what it shows, and no program that they name runs.
"""

import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltrain_train.sandboxes.settings import BadWorkspace, SandboxSettings

MAX_DIFF_BYTES = 1 << 20
"""Bytes of a diff that a reward gets."""
GIT_TIMEOUT = 120.0
"""Seconds of one command of git."""
MAX_OMITTED_SHOWN = 20

_GIT_OPTIONS = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")
_ATTRIBUTES = "* !diff !text !eol !crlf !filter !ident !working-tree-encoding !merge\n"


@dataclass(frozen=True, slots=True)
class Changes:
    """The workspace as an attempt left it."""

    folder: Path
    """Plain files, folders and links that lead inside; without `.git`."""
    diff: str
    """As `git diff` prints it, after a line for each entry that is not in `folder`."""

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Workspace:
    """A copy of a workspace, in a private folder."""

    def __init__(self, source: Path, folder: Path) -> None:
        """Copy `source` into the new `folder`.

        Raises:
            BadWorkspace: when it cannot be copied, or there is no git.
        """
        check_workspace(source)
        self.folder, self.copy, self._git = folder, folder / "copy", folder / "git"
        folder.mkdir(mode=0o700)
        done = subprocess.run(
            ["cp", "-a", "--reflink=auto", str(source), str(self.copy)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise BadWorkspace(f"{source} cannot be copied: {done.stderr.strip()}")
        self._run_git("init", "--quiet", "--bare", str(self._git))
        (self._git / "info").mkdir(exist_ok=True)
        (self._git / "info" / "attributes").write_text(_ATTRIBUTES)
        plain = folder / "plain"
        shutil.copytree(self.copy, plain, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        self._tree = self._write_tree(plain, folder / "base.index", self._git / "objects")
        shutil.rmtree(plain)

    def compare(self, folder: Path, scratch: Path, omitted: Sequence[str]) -> Changes:
        """Return the changes of an attempt whose files are in `folder`.

        Args:
            scratch: an empty private folder for git's files.
        """
        objects = scratch / "objects"
        objects.mkdir()
        tree = self._write_tree(folder, scratch / "index", objects)
        environ = self._environment(scratch / "index", objects)
        options = ("--no-ext-diff", "--no-textconv", "--no-renames", "--no-color")
        process = subprocess.Popen(
            ["git", *_GIT_OPTIONS, "diff", *options, self._tree, tree],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ,
        )  # fmt: skip
        with process:
            assert process.stdout is not None
            text = process.stdout.read(MAX_DIFF_BYTES + 1)
            process.kill()
        shutil.rmtree(scratch)
        return Changes(folder, _describe(text, omitted))

    def _write_tree(self, folder: Path, index: Path, objects: Path) -> str:
        environ = self._environment(index, objects)
        work_tree = ("--work-tree", str(folder))
        self._run_git(*work_tree, "add", "--all", "--force", ".", cwd=folder, env=environ)
        return self._run_git("write-tree", env=environ).strip()

    def _environment(self, index: Path, objects: Path) -> dict[str, str]:
        plain = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        return {
            **plain,
            "GIT_DIR": str(self._git),
            "GIT_INDEX_FILE": str(index),
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(self._git / "objects"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
        }

    def _run_git(
        self, *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> str:
        try:
            done = subprocess.run(
                ["git", *_GIT_OPTIONS, *arguments],
                capture_output=True, text=True, check=False, cwd=cwd, env=env, timeout=GIT_TIMEOUT,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise BadWorkspace(f"git {arguments[0]} took more than {GIT_TIMEOUT:g} s") from error
        if done.returncode:
            raise BadWorkspace(f"git {arguments[0]} failed: {done.stderr.strip()[-500:]}")
        return done.stdout


class Workspaces:
    """The copies of the workspaces of a run.

    One that all tasks have is copied once. That of a task is removed after its last attempt that
    runs.
    """

    def __init__(self, settings: SandboxSettings, folder: Path) -> None:
        """Make the private folder of the copies."""
        folder.mkdir(mode=0o700)
        self._settings, self._folder = settings, folder
        self._lock = threading.Lock()
        self._copies: dict[Path, Workspace] = {}
        self._uses: Counter[Path] = Counter()
        self._made = 0
        if settings.workspace is not None and not settings.has_workspaces:
            self._acquire(settings.workspace_of({}))

    @contextmanager
    def of(self, task: Mapping[str, Any]) -> Iterator[Workspace | None]:
        """Yield the workspace of a task with these fields; None if there is none.

        Raises:
            BadWorkspace: when it cannot be copied.
        """
        source = self._settings.workspace_of(task)
        with self._lock:
            workspace = self._acquire(source)
        try:
            yield workspace
        finally:
            with self._lock:
                self._release(source)

    def _acquire(self, source: Path | None) -> Workspace | None:
        if source is None:
            return None
        if source not in self._copies:
            self._made += 1
            self._copies[source] = Workspace(source, self._folder / str(self._made))
        self._uses[source] += 1
        return self._copies[source]

    def _release(self, source: Path | None) -> None:
        if source is not None:
            self._uses[source] -= 1
            if not self._uses[source]:
                shutil.rmtree(self._copies.pop(source).folder, ignore_errors=True)


def check_workspace(source: Path) -> None:
    """Check that a folder can be the workspace of attempts.

    Raises:
        BadWorkspace: when it cannot.
    """
    if not source.is_dir():
        raise BadWorkspace(
            f"rollout.workspace is {source}, which is not a folder. Name a folder with the files "
            "that each attempt gets a copy of."
        )
    if shutil.which("git") is None:
        raise BadWorkspace("rollout.workspace needs git, which is not in PATH. Install git.")


def _describe(text: bytes, omitted: Sequence[str]) -> str:
    names = [name.encode("unicode_escape").decode() for name in omitted[:MAX_OMITTED_SHOWN]]
    lines = [f"# not kept: {name}" for name in names]
    if len(omitted) > MAX_OMITTED_SHOWN:
        lines.append(f"# not kept: {len(omitted) - MAX_OMITTED_SHOWN} more")
    head = "".join(f"{line}\n" for line in lines)
    shown = text[:MAX_DIFF_BYTES].decode(errors="replace")
    cut = f"\n# the diff is longer than {MAX_DIFF_BYTES >> 20} MiB\n"
    return head + shown + (cut if len(text) > MAX_DIFF_BYTES else "")
