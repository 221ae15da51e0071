"""An environment with tasks: which class plays the environment that a recipe names."""

import importlib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

from ltrain_episodes.environment import BadEnvironment

Task = Mapping[str, Any]
"""A task: `id`, `input`, and what else the environment needs for an attempt, as JSON."""
HELD_OUT = "held_out"
"""The key of tasks whose environment has the options of held-out tasks."""
PACKAGES = {
    "gymnasium": "Gymnasium",
    "inspect": "Inspect",
    "openenv": "OpenEnv",
    "reasoning-gym": "ReasoningGym",
    "skyrl-gym": "SkyRLGym",
    "verifiers": "Verifiers",
}
"""The class of each package; its module has the name of the package,
and the older interface of verifiers one of its own."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The rewards and metrics of an attempt."""

    rewards: Mapping[str, float]
    """By name. Their sum, each with its weight, is the reward of the attempt."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights other than 1, by the name of the reward."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers by name, which are no part of the reward."""

    @property
    def reward(self) -> float:
        """The weighted sum."""
        return sum(value * self.weights.get(name, 1.0) for name, value in self.rewards.items())

    def as_result(self) -> dict[str, Any]:
        """Return the result of a rollout.

        Raises:
            BadEnvironment: when there is no reward, or a number is not finite.
        """
        if not self.rewards:
            raise BadEnvironment("The environment returned no reward for the attempt.")
        for name, value in {**self.rewards, **self.metrics}.items():
            if not math.isfinite(value):
                raise BadEnvironment(
                    f"The environment returned {value!r} as '{name}'. Return a finite number."
                )
        return {"reward": self.reward, "rewards": dict(self.rewards), "metrics": dict(self.metrics)}


class TaskEnvironment(Protocol):
    """The interface of an environment: of one's own, too, as `environment = "module:Class"`.

    The class gets the recipe's `[rollout.options]` as keyword arguments.
    """

    agents: Sequence[str]
    """The agents whose calls are trained, by the name in the header `x-ltrain-agent` of their
    calls; empty: all calls of the attempt are."""

    def tasks(self, limit: int | None) -> Iterable[Task]:
        """Yield the tasks in a stable order, at most `limit`; an id names equal tasks equally."""

    async def attempt(self, task: Task, llm: Any) -> Scores:
        """Play an episode of `task` with the model behind `llm`, and score it.

        Args:
            task: one of `tasks`.
            llm: has `base_url`, `api_key` and `model`.
        """


def task_id(content: str) -> str:
    """Return the id of a task that its package gives none: a digest of what the task says."""
    return sha256(content.encode()).hexdigest()[:16]


def open_environment(reference: str, options: Mapping[str, Any]) -> TaskEnvironment:
    """Return the environment of a reference: `PACKAGE:NAME`, or `module:Class` of one's own.

    Raises:
        BadEnvironment: when there is no such package, module or class, or it refuses an option.
    """
    package, _, name = reference.partition(":")
    module, owner = package, name
    if package in PACKAGES:
        module, owner = f"{__package__}.{_module_of(package)}", PACKAGES[package]
    try:
        environment = getattr(importlib.import_module(module), owner)
    except (ImportError, AttributeError) as error:
        raise BadEnvironment(_describe_missing(reference, package, error)) from error
    try:
        made = environment(name, **options) if package in PACKAGES else environment(**options)
    except (TypeError, ValueError, ImportError) as error:
        raise BadEnvironment(
            f"The environment '{reference}' refuses its options: {error}"
        ) from error
    return made  # type: ignore[no-any-return]


def _module_of(package: str) -> str:
    """Return the module of a package: verifiers before 0.4 has another interface."""
    name = package.replace("-", "_")
    with suppress(PackageNotFoundError):
        if package == "verifiers" and version(package).startswith(("0.1.", "0.2.", "0.3.")):
            return f"{name}_legacy"
    return name


def _describe_missing(reference: str, package: str, error: Exception) -> str:
    if package not in PACKAGES:
        return (
            f"There is no environment '{reference}': {error}. Choose a package from: "
            f"{', '.join(PACKAGES)}; or name a class of your own as module:Class."
        )
    return (
        f"The environment '{reference}' needs the package {package}, and its import failed: "
        f"{error}. Install it where `rollout.python` of the recipe runs."
    )
