"""The place of one attempt: the files, sockets and variables that its sandbox gets."""

import marshal
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ltrain_instrument.files import make_private
from ltrain_instrument.settings import HOME, SPOOL
from ltrain_train.sandboxes import init
from ltrain_train.sandboxes.outbox import OUTBOX_SUFFIX, Outbox
from ltrain_train.sandboxes.settings import SandboxSettings
from ltrain_train.sandboxes.workspace import Changes, Workspace

RUN = "/run/ltrain"
"""The folder in a sandbox with the files that ltrain needs there."""
INIT, OUTBOX = f"{RUN}/init.py", f"{RUN}/outbox"
TMP, ATTEMPT = "/tmp", "/attempt"
"""Folders in a sandbox that an attempt can write; each is as large as the disk limit."""
INNER_HOME, INNER_SPOOL = f"{ATTEMPT}/home", f"{ATTEMPT}/ltrain"
INNER_WORKSPACE = f"{ATTEMPT}/workspace"
INNER_SOURCE = f"{RUN}/workspace"
WORKSPACE_VARIABLE = "LTRAIN_WORKSPACE"
MARSHAL = 2
"""The version of marshalled data that every Python reads."""
PASSED = ("LANG", "LANGUAGE", "LC_", "TZ", "TERM", "PYTHON", "OTEL_", "LTRAIN_")
"""Starts of the names of variables that an attempt gets from ltrain's environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The place of one attempt; `finish` reads what the attempt left."""

    name: str
    settings: SandboxSettings
    folder: Path
    """Private folder on the host."""
    home: Path
    """`LTRAIN_HOME` of the attempt on the host: its unsent spans are moved there."""
    python: Path
    command: Sequence[str]
    """The command line in the sandbox."""
    environ: Mapping[str, str]
    """Variables in the sandbox, where addresses of the host are those of forwarded ports."""
    original_environ: Mapping[str, str]
    """The same with the addresses as they are outside."""
    sockets: Sequence[tuple[str, int, Path]]
    """Address and port in the sandbox, and the socket on the host, of each target."""
    visible: Sequence[Path]
    hidden: Sequence[Path]
    workspace: Workspace | None
    counts_processes: bool
    argv: Sequence[str] = ()
    """The command line on the host that runs the attempt."""

    @property
    def outbox(self) -> Path:
        """The file into which the sandbox writes what is left."""
        return self.home / f"{self.name}{OUTBOX_SUFFIX}"

    @property
    def started(self) -> bool:
        """Whether the command was started in the sandbox."""
        return self.outbox.stat().st_size > 0

    @property
    def read_only(self) -> list[tuple[Path, str]]:
        """Files of the host and their places in the sandbox."""
        mounts = [(Path(init.__file__), INIT)]
        mounts += [(self.folder / name, f"/etc/{name}") for name in ("hosts", "passwd", "group")]
        mounts += [(path, f"{RUN}/{path.name}") for _, _, path in self.sockets]
        if self.workspace is not None:
            mounts.append((self.workspace.copy, INNER_SOURCE))
        return mounts

    def config(self) -> str:
        """Return the configuration of the first process."""
        limits = self.settings.limits.model_dump()
        has_workspace = self.workspace is not None
        config = {
            "listen": [
                (address, port, f"{RUN}/{path.name}") for address, port, path in self.sockets
            ],
            "limits": limits | {"counts_processes": self.counts_processes},
            "copy": [INNER_SOURCE, INNER_WORKSPACE] if has_workspace else [],
            "folders": {SPOOL: f"{INNER_SPOOL}/{SPOOL}", "workspace": INNER_WORKSPACE},
            "outbox": OUTBOX,
            "make": [INNER_HOME, INNER_SPOOL, *([INNER_WORKSPACE] if has_workspace else [])],
        }
        return marshal.dumps(config, MARSHAL).hex()

    def masked(self, visible: Sequence[Path]) -> list[Path]:
        """Return the hidden files and folders that are inside visible ones."""
        return [
            path
            for path in self.hidden
            if path.exists() and any(each in (path, *path.parents) for each in visible)
        ]

    def prepare(self, hosts: Mapping[str, str]) -> None:
        """Write the files of the room; `hosts` are names of other machines and their addresses."""
        self.folder.mkdir(mode=0o700)
        make_private(self.home)
        self.outbox.touch(mode=0o600)
        lines = ["127.0.0.1 localhost sandbox", *(f"{hosts[name]} {name}" for name in hosts)]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        (self.folder / "passwd").write_text(f"agent:x:1000:1000::{INNER_HOME}:/bin/sh\n")
        (self.folder / "group").write_text("agent:x:1000:\n")

    def finish(self) -> Changes | None:
        """Unpack the spool into the home and the workspace into a folder; return its changes.

        Raises:
            BadWorkspace: when git cannot compare them.
        """
        changed = self.folder / "workspace"
        changed.mkdir(mode=0o700)
        outbox = Outbox(self.outbox, self.settings.limits.disk_mib << 20)
        outbox.unpack({SPOOL: self.home / SPOOL, "workspace": changed})
        if self.workspace is None:
            self.remove()
            return None
        scratch = self.folder / "scratch"
        scratch.mkdir()
        return self.workspace.compare(changed, scratch, outbox.omitted)

    def remove(self) -> None:
        """Remove the folder."""
        self.outbox.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


class Sandbox(Protocol):
    """A kind of sandbox."""

    replaces_environment: bool
    """Whether the command line itself has the attempt's variables, and no others."""

    def check(self) -> None:
        """Raise `SandboxUnavailable` if no sandbox can be started here."""

    def wrap(self, room: Room) -> list[str]:
        """Return the command line that runs an attempt."""

    def end(self, room: Room) -> None:
        """End what still runs of an attempt whose command line has ended."""


def inner_environment(environ: Mapping[str, str | None], *, workspace: bool) -> dict[str, str]:
    """Return the variables of an attempt: those named by ltrain, and few of this process."""
    own = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
    merged = {**own, **environ, HOME.name: INNER_SPOOL, "HOME": INNER_HOME, "TMPDIR": TMP}
    if workspace:
        merged[WORKSPACE_VARIABLE] = INNER_WORKSPACE
    return {name: value for name, value in merged.items() if value is not None}
