"""The sandbox of docker or podman: a container of an image that has the agent's environment.

The image needs `python3`, which runs the first process, and `cp`. With ltrain in it the agent is
instrumented; without ltrain its rollouts have the gateway's spans.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which

from ltrain_train.sandboxes.room import ATTEMPT, INIT, OUTBOX, TMP, Room
from ltrain_train.sandboxes.settings import SandboxSettings, SandboxUnavailable

TIMEOUT = 30.0
"""Seconds of one command besides the attempt's own."""
START = """
if command -v opentelemetry-instrument >/dev/null
then exec opentelemetry-instrument /bin/sh -c "$1"
else exec /bin/sh -c "$1"
fi"""
"""Starts the agent's command, instrumented if the image has ltrain."""
ISOLATION = (
    "--network", "none", "--read-only", "--cap-drop", "ALL", "--hostname", "sandbox",
    "--security-opt", "no-new-privileges", "--shm-size", "64m",
)  # fmt: skip


class Container:
    """Starts each attempt by `docker run` or `podman run`."""

    replaces_environment = False

    def __init__(self, settings: SandboxSettings) -> None:
        self._program, self._settings = settings.kind, settings

    def check(self) -> None:
        """Raise `SandboxUnavailable` if no sandbox can be started here."""
        program, image = self._program, self._settings.image or ""
        if which(program) is None:
            raise SandboxUnavailable(
                f'sandbox = "{program}" needs the program {program}, which is not in PATH. Install '
                'it, or set sandbox = "bubblewrap".'
            )
        if problem := self._call("version"):
            raise SandboxUnavailable(
                f"{program} does not work: {problem}. Start its daemon, and check that this user "
                "may use it."
            )
        if problem := self._call("image", "inspect", image):
            raise SandboxUnavailable(
                f"{program} has no image '{image}': {problem}. Run: {program} pull {image}"
            )

    def wrap(self, room: Room) -> list[str]:
        """Return the command line that runs an attempt."""
        limits = room.settings.limits
        memory = f"{room.settings.most_memory_mib}m"
        user = ("--userns", "keep-id") if self._program == "podman" else ()
        return [
            *(self._program, "run", "--rm", "--name", _container_name(room)),
            *ISOLATION,
            *("--user", f"{os.getuid()}:{os.getgid()}", *user),
            *("--memory", memory, "--memory-swap", memory),
            *("--pids-limit", str(room.settings.most_processes)),
            *_tmpfs(TMP, limits.disk_mib),
            *_tmpfs(ATTEMPT, limits.disk_mib),
            *(option for mount in _mounts(room) for option in ("--mount", mount)),
            *("--env-file", str(_write_environment(room))),
            *("--workdir", str(room.settings.folder)),
            *("--entrypoint", "python3", room.settings.image or "", "-I", "-S", INIT),
            *(room.config(), "/bin/sh", "-c", START, "sh", room.settings.agent),
        ]

    def end(self, room: Room) -> None:
        """Remove the container if it still runs."""
        self._call("rm", "--force", _container_name(room))

    def _call(self, *arguments: str) -> str:
        """Run a command of the program, and return its error; '' for none."""
        try:
            done = subprocess.run(
                [self._program, *arguments],
                capture_output=True, text=True, timeout=TIMEOUT, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"it does not answer within {TIMEOUT:g} s"
        return done.stderr.strip()[-300:] or "it failed" if done.returncode else ""


def _container_name(room: Room) -> str:
    return f"ltrain-{os.getpid()}-{room.name}"


def _tmpfs(path: str, mebibytes: int) -> tuple[str, str]:
    return "--tmpfs", f"{path}:rw,exec,nosuid,nodev,mode=1777,size={mebibytes}m"


def _mounts(room: Room) -> Iterator[str]:
    for path in room.settings.visible:
        yield _bind(path, str(path))
    for path in room.masked(room.settings.visible):
        if path.is_dir():
            yield f"type=tmpfs,target={path},tmpfs-size=0"
        else:
            yield _bind(Path(os.devnull), str(path))
    for path, target in room.read_only:
        yield _bind(path, target)
    yield f"type=bind,source={room.outbox},target={OUTBOX}"


def _bind(source: Path, target: str) -> str:
    return f"type=bind,source={source},target={target},readonly"


def _write_environment(room: Room) -> Path:
    """Write the variables of an attempt, without those that describe this machine's Python."""
    kept = {
        name: value
        for name, value in room.environ.items()
        if name != "PATH" and not name.startswith("PYTHON")
    }
    for name, value in kept.items():
        if "\n" in value:
            raise SandboxUnavailable(
                f"{name} has several lines, which {room.settings.kind} cannot pass. Remove it."
            )
    file = room.folder / "environment"
    file.touch(mode=0o600)
    file.write_text("".join(f"{name}={value}\n" for name, value in kept.items()))
    return file
