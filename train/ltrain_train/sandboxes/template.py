"""The sandbox of a command line of the user's: E2B, Modal, Daytona, Kubernetes and others.

The command line gets a copy of the workspace on this machine, and leaves the changed files there.
The last line that it prints is the result of the attempt, and its exit status is the attempt's.
"""

import json
import shlex
import shutil
from pathlib import Path

from ltrain_train.sandboxes import init
from ltrain_train.sandboxes.room import Room
from ltrain_train.sandboxes.settings import SandboxSettings, SandboxUnavailable

COMMAND = "{command}"


class Template:
    """Starts each attempt by a command line whose placeholders are filled."""

    replaces_environment = False

    def __init__(self, settings: SandboxSettings) -> None:
        self._template = settings.template or ""

    def check(self) -> None:
        """Raise `SandboxUnavailable` if no sandbox can be started here."""
        if COMMAND not in self._template:
            raise SandboxUnavailable(
                f"sandbox_command is '{self._template}' and has no {COMMAND}. Write {COMMAND} "
                "where the agent's command stands."
            )
        word = self._template.split()[0]
        if shutil.which(word) is None:
            raise SandboxUnavailable(
                f"sandbox_command starts with '{word}', which is not in PATH. Install it, or use "
                "its whole path."
            )

    def wrap(self, room: Room) -> list[str]:
        """Return the command line that runs an attempt."""
        environment = room.folder / "environment.json"
        environment.touch(mode=0o600)
        environment.write_text(json.dumps(dict(room.original_environ)))
        if room.workspace is not None:
            shutil.copytree(room.workspace.copy, _workspace(room), symlinks=True)
        values = {
            "command": room.settings.agent,
            "environment": environment,
            "workspace": _workspace(room) if room.workspace is not None else "",
            "folder": room.settings.folder,
            "name": room.name,
            **room.settings.limits.model_dump(),
        }
        line = self._template
        for name, value in values.items():
            text = "" if value is None else str(value)
            line = line.replace(f"{{{name}}}", shlex.quote(text))
        return ["/bin/sh", "-c", line]

    def end(self, room: Room) -> None:
        """Pack the workspace as the first process of another sandbox does."""
        folders = {"workspace": str(_workspace(room))}
        limits = room.settings.limits.model_dump()
        init.hand_out({"limits": limits, "folders": folders, "outbox": str(room.outbox)})


def _workspace(room: Room) -> Path:
    return room.folder / "given"
