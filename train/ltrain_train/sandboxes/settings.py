"""The sandbox of a program: its kind, its files and its limits, as a recipe names them."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from ltrain_instrument.errors import LtrainError

if TYPE_CHECKING:  # its import takes a second, which a runner without a recipe saves
    from ltrain_transforms.recipe import Rollout, SandboxLimits

Kind = Literal["bubblewrap", "docker", "podman", "command"]
OWN_PROCESSES = 8
"""Processes and threads of the sandbox itself, without those that forward connections."""


class SandboxUnavailable(LtrainError, RuntimeError):
    """This machine cannot start the sandbox of a recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """How the attempts of a command are isolated."""

    kind: Kind
    agent: str
    """The command."""
    limits: "SandboxLimits"
    folder: Path
    """Folder of the recipe, in which the command starts."""
    workspace: Path | None
    """Folder whose copy each attempt gets."""
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
            workspace=(folder / rollout.workspace).resolve() if rollout.workspace else None,
            visible=tuple(dict.fromkeys(named)),
            hidden=tuple([*secret, *_reward_files(rollout.reward or "", folder)]),
            image=rollout.image,
            template=rollout.sandbox_command,
        )


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
