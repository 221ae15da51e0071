"""The tasks of an environment, which its package lists in the agent's Python."""

import json
import logging
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ltrain_instrument.errors import LtrainError
from ltrain_instrument.identity import ENVIRONMENT_VARIABLE
from ltrain_instrument.settings import secret_variables
from ltrain_train.workers import agent_environment, find_python

if TYPE_CHECKING:  # its import takes a second, which `ltrain rollout` saves
    from ltrain_transforms.recipe import Rollout

_logger = logging.getLogger("ltrain.loop")
TIMEOUT = 600.0
"""Seconds in which an environment lists its tasks; it may download a data set."""


class EnvironmentFailed(LtrainError, RuntimeError):
    """The environment of a recipe cannot list its tasks."""


@dataclass(frozen=True, slots=True)
class EnvironmentTasks:
    """The listed tasks of an environment, in a folder of the home."""

    folder: Path
    validation: int
    repeated: int
    """Tasks that were left out, because an earlier one has their id."""
    agents: tuple[str, ...]
    """The agents that the environment trains; empty: all."""

    @property
    def files(self) -> dict[str, str]:
        """The keys of [rollout] that name the files of the tasks."""
        files = {"tasks": str(self.folder / "train.jsonl")}
        if self.validation:
            files["validation"] = str(self.folder / "validation.jsonl")
        return files


def environment_variables(rollout: "Rollout") -> dict[str, str]:
    """Return the variables that tell the agent's processes their environment."""
    if rollout.environment is None:
        return {}
    return {ENVIRONMENT_VARIABLE: json.dumps(_described(rollout), sort_keys=True)}


def list_tasks(
    rollout: "Rollout", folder: Path, home: Path, secrets: Sequence[str] = ()
) -> EnvironmentTasks:
    """List the tasks of a recipe's environment anew, because its files may have changed.

    Args:
        folder: folder of the recipe's files and modules.
        secrets: environment variables that the environment does not get, besides ltrain's own.

    Raises:
        BadInterpreter: when `rollout.python` cannot run it.
        EnvironmentFailed: when it cannot be opened, or lists no task.
    """
    python = find_python(rollout.python, folder)
    request = _described(rollout) | {
        "held_out_share": rollout.held_out_share,
        "limit": rollout.max_tasks,
    }
    text = json.dumps(request, sort_keys=True)
    name = sha256(f"{text} {folder.resolve()}".encode()).hexdigest()[:16]
    target = home / "environments" / name
    target.mkdir(parents=True, exist_ok=True)
    hidden = dict.fromkeys([*secret_variables(), *secrets])
    variables = os.environ | agent_environment(home, hidden, python)
    try:
        done = subprocess.run(
            [python, "-m", "ltrain_episodes.environments.task_files", target],
            input=text, capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd=folder,
            env={key: value for key, value in variables.items() if value is not None},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailed(
            f"The environment '{rollout.environment}' did not list its tasks in {TIMEOUT:g} s. "
            "Set `max_tasks` in [rollout], or run it once by hand to download its data."
        ) from error
    if done.returncode != 0:
        raise EnvironmentFailed(_last_line(done.stderr))
    listed = _read_summary(target)
    if listed.repeated:
        _logger.warning(
            "ltrain: %d of the tasks that %s lists have the id of an earlier one, and are left out",
            *(listed.repeated, rollout.environment),
        )
    return listed


def _described(rollout: "Rollout") -> dict[str, Any]:
    return rollout.model_dump(include={"environment", "options", "held_out_options"}, mode="json")


def _read_summary(folder: Path) -> EnvironmentTasks:
    summary: Mapping[str, Any] = json.loads((folder / "summary.json").read_text())
    return EnvironmentTasks(folder, **{**summary, "agents": tuple(summary["agents"])})


def _last_line(stderr: str) -> str:
    lines = stderr.strip().splitlines()
    return lines[-1] if lines else "The environment ended without listing its tasks."
