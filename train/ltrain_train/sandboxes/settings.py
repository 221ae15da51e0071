"""The sandbox of a program: its kind, its files and its limits, as a recipe names them."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from ltrain_instrument.errors import LtrainError

if TYPE_CHECKING:  # its import takes a second, which a runner without a recipe saves
    from ltrain_transforms.recipe import Rollout, SandboxLimits

Kind = Literal["bubblewrap", "docker", "podman", "command"]
KEY = re.compile(r"\{(\w+)\}")
"""A key of the task in the path of the workspace."""
OWN_PROCESSES = 8
"""Processes and threads of the sandbox itself, without those that forward connections."""


class SandboxUnavailable(LtrainError, RuntimeError):
    """This machine cannot start the sandbox of a recipe."""


class BadWorkspace(LtrainError, ValueError):
    """The workspace of a recipe cannot be copied or compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """How the attempts of a command are isolated."""

    kind: Kind
    agent: str
    """The command."""
    limits: "SandboxLimits"
    folder: Path
    """Folder of the recipe, in which the command starts."""
    workspace: str | None
    """Path of the folder whose copy each attempt gets; `{key}` is a value of the attempt's task."""
    visible: tuple[Path, ...]
    """Files and folders that attempts can read."""
    hidden: tuple[Path, ...]
    """Files and folders that they cannot read, also inside visible folders."""
    image: str | None = None
    """Image of docker and podman."""
    template: str | None = None
    """Command line of `command`."""

    @property
    def most_processes(self) -> int:
        """Processes and threads that the kernel allows, those of the sandbox itself included."""
        return self.limits.processes + OWN_PROCESSES

    @property
    def most_memory_mib(self) -> int:
        """Memory that the kernel allows: files count too, and the first process measures limits."""
        return 2 * (self.limits.memory_mib + self.limits.disk_mib)

    @property
    def has_workspaces(self) -> bool:
        """Whether the path of the workspace depends on the task."""
        return self.workspace is not None and KEY.search(self.workspace) is not None

    def workspace_of(self, task: Mapping[str, Any]) -> Path | None:
        """Return the workspace of a task with these fields.

        Raises:
            BadWorkspace: when a value in the path is not the name of a file.
        """
        if self.workspace is None:
            return None
        path = KEY.sub(lambda found: _file_name(found[1], task.get(found[1])), self.workspace)
        return (self.folder / path).resolve()

    @classmethod
    def from_section(cls, rollout: "Rollout", folder: Path) -> Self | None:
        """Return the sandbox of a [rollout] section; None without one."""
        if rollout.sandbox is None or rollout.agent is None:
            return None
        folder = folder.resolve()
        named = [*_named_files(rollout.agent, folder), *(folder / each for each in rollout.visible)]
        tasks = (rollout.tasks, rollout.validation, rollout.test)
        secret = [folder / each for each in tasks if each]
        return cls(
            kind=rollout.sandbox,
            agent=rollout.agent,
            limits=rollout.limits,
            folder=folder,
            workspace=rollout.workspace,
            visible=tuple(dict.fromkeys(named)),
            hidden=tuple([*secret, *_reward_files(rollout.reward or "", folder)]),
            image=rollout.image,
            template=rollout.sandbox_command,
        )


def _file_name(key: str, value: object) -> str:
    name = str(value)
    if not isinstance(value, str | int) or name in ("", ".", "..") or {"/", "\0"} & set(name):
        raise BadWorkspace(
            f"rollout.workspace has {{{key}}}, which is {value!r} in a task: it must be the name "
            "of a file, without '/'."
        )
    return name


def _named_files(command: str, folder: Path) -> Iterator[Path]:
    """Yield the files and folders below the recipe's folder that a command names."""
    try:
        words = shlex.split(command)
    except ValueError:  # the shell reports it
        words = command.split()
    for word in words:
        for part in word.replace("=", ":").replace(";", ":").split(":"):
            path = Path(folder, part)
            if part and path.exists() and folder in path.resolve().parents:
                yield path.resolve()


def _reward_files(reward: str, folder: Path) -> Iterable[Path]:
    module = reward.partition(":")[0]
    if reward.startswith(("http://", "https://")):
        return []
    if module.endswith(".py"):
        return [folder / module]
    path = folder.joinpath(*module.split(".")) if " " not in module else folder
    return [path.with_suffix(".py"), path] if path != folder else _named_files(reward, folder)
