"""The sandboxes of a run: its workspaces, its sockets, and the room of each attempt."""

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from typing import Any

from ltrain_instrument.files import make_private
from ltrain_instrument.settings import HOME
from ltrain_train.processes import scratch_path
from ltrain_train.sandboxes.bridge import Bridge, Target, inner_address, inner_addresses
from ltrain_train.sandboxes.bubblewrap import Bubblewrap, counts_processes
from ltrain_train.sandboxes.container import Container
from ltrain_train.sandboxes.room import Room, Sandbox, inner_environment
from ltrain_train.sandboxes.settings import SandboxSettings
from ltrain_train.sandboxes.template import Template
from ltrain_train.sandboxes.workspace import Workspace, Workspaces, check_workspace

ADDRESS = re.compile(r"OPENAI_BASE_URL|OTEL_EXPORTER_OTLP_(\w+_)?ENDPOINT|LTRAIN_SERVICE_\w+")
"""Names of the variables that hold the addresses that attempts may reach."""
MAX_SOCKET_NAME = 12
"""Bytes of the longest name of a socket."""
PYTHON_PATHS = """
import os, sys
real = os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))
paths = [sys.prefix, sys.base_prefix, real, *(p for p in sys.path if p)]
print("\\n".join(p for p in paths if os.path.exists(p)))
"""


def open_sandbox(settings: SandboxSettings) -> Sandbox:
    """Return the kind of sandbox that the settings name."""
    if settings.kind == "bubblewrap":
        return Bubblewrap()
    return Template(settings) if settings.kind == "command" else Container(settings)


def check_sandbox(settings: SandboxSettings, tasks: Iterable[Mapping[str, Any]]) -> None:
    """Check that attempts can run in their sandbox on this machine.

    Args:
        tasks: the fields that the agent may read of each task.

    Raises:
        SandboxUnavailable: when it cannot be started.
        BadWorkspace: when the workspace of a task cannot be used.
    """
    open_sandbox(settings).check()
    for workspace in dict.fromkeys(settings.workspace_of(task) for task in tasks):
        if workspace is not None:
            check_workspace(workspace)


class Sandboxes(ExitStack):
    """Owns what the sandboxes of a run share."""

    def __init__(self, settings: SandboxSettings, python: Path, home: Path) -> None:
        """Copy the workspace that all tasks have, and open the bridge.

        Args:
            python: the Python of the agent.
            home: the folder of ltrain, which no attempt can read.
        """
        super().__init__()
        self._settings, self._python, self._home = settings, python, home
        self._sandbox = open_sandbox(settings)
        own = settings.kind == "bubblewrap"
        paths = python_paths(python) if own else ()
        self._visible = _outermost([*map(Path, paths), *settings.visible])
        self._folder = scratch_path("sandbox", parent=home, max_socket_name=MAX_SOCKET_NAME)
        make_private(self._folder)
        self.callback(rmtree, self._folder, ignore_errors=True)
        self._bridge = Bridge(self._folder)
        self.callback(self._bridge.close)
        self._workspaces = Workspaces(settings, self._folder / "workspaces")

    def workspace_of(self, task: Mapping[str, Any]) -> AbstractContextManager[Workspace | None]:
        """Lend the workspace of a task with these fields, for one attempt.

        Raises:
            BadWorkspace: in the `with` statement, when it cannot be copied.
        """
        return self._workspaces.of(task)

    def open(
        self,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str | None],
        workspace: Workspace | None,
    ) -> Room:
        """Return the room in which an attempt runs a command line."""
        variables = inner_environment(environ, workspace=workspace is not None)
        inner = inner_addresses(_find_targets(variables))
        room = Room(
            name=name,
            settings=self._settings,
            folder=self._folder / name,
            home=Path(environ.get(HOME.name) or self._home).resolve(),
            python=self._python,
            command=command,
            environ={
                name: inner_address(text) if ADDRESS.fullmatch(name) else text
                for name, text in variables.items()
            },
            original_environ=variables,
            sockets=[
                (place, target.inner_port, self._bridge.open(target))
                for target, place in inner.items()
            ],
            visible=self._visible,
            hidden=[*self._settings.hidden, self._home],
            workspace=workspace,
            counts_processes=self._settings.kind == "bubblewrap" and counts_processes(),
        )
        room.prepare({target.host: at for target, at in inner.items() if not target.is_local})
        return replace(room, argv=self._sandbox.wrap(room))

    @property
    def replaces_environment(self) -> bool:
        """Whether a room's command line has the attempt's variables, and no others."""
        return self._sandbox.replaces_environment

    def end(self, room: Room) -> None:
        """End what still runs in a room."""
        self._sandbox.end(room)


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that are in no other one."""
    unique = dict.fromkeys(paths)
    return [path for path in unique if not any(each in unique for each in path.parents)]


def _find_targets(environ: Mapping[str, str]) -> set[Target]:
    addresses = [address for name, address in environ.items() if ADDRESS.fullmatch(name)]
    found = (Target.from_address(address) for address in addresses)
    return {target for target in found if target is not None}


@lru_cache
def python_paths(python: Path) -> tuple[str, ...]:
    """Return the folders that an interpreter reads."""
    done = subprocess.run(
        [python, "-c", PYTHON_PATHS], capture_output=True, text=True, check=True, cwd="/"
    )
    return tuple(dict.fromkeys(done.stdout.splitlines()))
