"""The sandbox of bubblewrap: Linux namespaces, without root and without a daemon."""

import os
import subprocess
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from shutil import which

from ltrain_train.sandboxes.cgroup import Controllers, join_command
from ltrain_train.sandboxes.room import ATTEMPT, INIT, OUTBOX, TMP, Room
from ltrain_train.sandboxes.settings import SandboxUnavailable

PROGRAM = "bwrap"
CHECK_TIMEOUT = 20.0
"""Seconds; a start takes 0.01 s on an idle machine."""
SHM_MIB, TMP_MIB = 64, 64
WORKSPACE = "/workspace"
"""The folder in which an isolated command starts."""
USER = "1000"
"""User and group in the sandbox."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = (
    "alternatives", "crypto-policies", "ld.so.cache", "localtime", "mime.types", "nsswitch.conf",
    "os-release", "pki/ca-trust", "pki/tls/certs", "services", "ssl/certs", "ssl/openssl.cnf",
)  # fmt: skip
"""Files of /etc that programs read; none of them names users or holds keys."""
ISOLATION = (
    "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
    "--unshare-cgroup-try", "--uid", USER, "--gid", USER, "--hostname", "sandbox",
    "--cap-drop", "ALL", "--as-pid-1", "--die-with-parent",
)  # fmt: skip

HIGH_PRIORITY = ("nice", "-n", "-10")
"""Of the first process under root, whose processes the kernel does not count: it ends a fork bomb.
Its command has the usual priority."""


class Bubblewrap:
    """Starts each attempt under `bwrap`."""

    replaces_environment = True

    def __init__(self) -> None:
        self._is_root = os.getuid() == 0
        self._groups = Controllers.find() if self._is_root else None

    def check(self) -> None:
        """Raise `SandboxUnavailable` if no sandbox can be started here."""
        if which(PROGRAM) is None:
            raise SandboxUnavailable(
                'sandbox = "bubblewrap" needs the program bwrap, which is not in PATH. Install it: '
                "apt-get install bubblewrap, or dnf install bubblewrap."
            )
        done = subprocess.run(
            [PROGRAM, *_isolation(), *_system(), "--proc", "/proc", "true"],
            capture_output=True, text=True, timeout=CHECK_TIMEOUT, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SandboxUnavailable(
                f"bwrap cannot start a sandbox: {done.stderr.strip()[-300:]}. Allow unprivileged "
                "user namespaces: sysctl -w user.max_user_namespaces=15000, "
                "kernel.unprivileged_userns_clone=1 (Debian), "
                "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); in a container, "
                'start it with --security-opt seccomp=unconfined, or set sandbox = "docker".'
            )

        if self._is_root and self._groups is None:
            raise SandboxUnavailable(
                "The kernel does not limit the processes of root, and no control group can be made "
                "here. Run ltrain as another user."
            )

    def wrap(self, room: Room) -> list[str]:
        """Return the command line that runs an attempt."""
        folder = str(room.settings.folder)
        writable = _is_writable(room)
        return [
            *self._join(room),
            PROGRAM,
            *_isolation(),
            *_system(),
            *("--proc", "/proc", "--dev", "/dev"),
            *_tmpfs("/dev/shm", SHM_MIB),
            *_tmpfs(TMP, room.settings.limits.disk_mib),
            *_tmpfs(ATTEMPT, room.settings.limits.disk_mib),
            *(_tmpfs(folder, 1) if writable else ("--dir", folder)),
            *_read_only(room.visible),
            *_masks(room.masked(room.visible)),
            *(("--remount-ro", folder) if writable else ()),
            *_mounts(room),
            # a sandbox that root starts could write settings of the kernel otherwise
            *("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"),
            *("--chdir", folder),
            *("--", str(room.python), "-I", "-S", INIT),
            *(room.config(), *room.command),
        ]

    @staticmethod
    def isolate(command: Sequence[str], folder: Path, visible: Sequence[Path]) -> list[str]:
        """Return the command line that runs a command in `/workspace`, which is the folder."""
        return [
            PROGRAM,
            *_isolation(),
            *_system(),
            *("--proc", "/proc", "--dev", "/dev"),
            *_tmpfs(TMP, TMP_MIB),
            *_read_only(visible),
            *("--bind", str(folder), WORKSPACE),
            *("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"),
            *("--chdir", WORKSPACE, "--", *command),
        ]

    def end(self, room: Room) -> None:
        """Remove the control groups; the end of the command line has ended all processes."""
        if self._groups is not None:
            self._groups.remove(room.name)

    def _join(self, room: Room) -> list[str]:
        if self._groups is None:
            return []
        groups = self._groups.make(room.name, room.settings)
        return [*join_command(groups), *HIGH_PRIORITY]


def counts_processes() -> bool:
    """Return whether the kernel counts the processes of this user in each namespace alone."""
    if os.getuid() == 0:  # it does not limit those of root
        return False
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int(minor.partition("-")[0])) >= (5, 14)


@lru_cache
def _isolation() -> Sequence[str]:
    usage = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=False)
    # bubblewrap 0.8
    more = ["--disable-userns"] if "--disable-userns" in usage.stdout + usage.stderr else []
    return (*ISOLATION, *more)


def _system() -> list[str]:
    etc = [f"/etc/{name}" for name in ETC]
    options: list[str] = []
    for path in SYSTEM:
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        else:
            options += ["--ro-bind-try", path, path]
    return options + [word for path in etc for word in ("--ro-bind-try", path, path)]


def _is_writable(room: Room) -> bool:
    """Return whether the recipe's folder would be in the attempt's own /tmp."""
    above = room.settings.folder.parents
    return Path(TMP) in above and not any(each in above for each in room.visible)


def _tmpfs(path: str, mebibytes: int) -> list[str]:
    return ["--size", str(mebibytes << 20), "--tmpfs", path]


def _read_only(paths: Iterable[Path]) -> list[str]:
    return [word for path in paths for word in ("--ro-bind", str(path), str(path))]


def _masks(paths: Iterable[Path]) -> list[str]:
    options: list[str] = []
    for path in paths:
        if path.is_dir():
            options += ["--tmpfs", str(path), "--remount-ro", str(path)]
        else:
            options += ["--ro-bind", os.devnull, str(path)]
    return options


def _mounts(room: Room) -> list[str]:
    options = _pairs("--ro-bind", room.read_only)
    return [*options, "--bind", str(room.outbox), OUTBOX]


def _pairs(option: str, mounts: Iterable[tuple[Path, str]]) -> list[str]:
    return [word for source, target in mounts for word in (option, str(source), target)]
