"""Write the tasks, the agent and the reward of a recipe as a package for verifiers."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from ltrain_instrument.errors import LtrainError
from ltrain_train.rollout import load_tasks
from ltrain_train.workers import is_reference
from ltrain_transforms.recipe import Recipe, Rollout

PARTS = Path(__file__).parent
LEFT_OUT = (".*", "__pycache__", "*.pyc", "*.parquet", "*.jsonl", "*.safetensors", "node_modules")
"""Patterns of files that are not copied: environments, the home, data and weights."""
PROJECT = """[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11"
# and the packages that the agent and its reward import
dependencies = ["verifiers>=0.4,<0.5"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["{name}"]
"""


class BadExport(LtrainError, ValueError):
    """A recipe cannot be an environment of verifiers."""


def write_package(path: Path, out: Path) -> str:
    """Write the package of the recipe in a file to a new folder, and return its module's name.

    Raises:
        BadExport: when the recipe has a part that verifiers cannot run, or the folder exists.
        BadRecipe: when the recipe cannot be read.
        BadTasks: when its tasks cannot be read.
    """
    recipe, folder = Recipe.load(path), path.parent
    rollout = _exportable(recipe)
    tasks = load_tasks(folder / rollout.tasks)
    if out.exists():
        raise BadExport(f"{out} exists. Name a new folder.")
    name = re.sub(r"\W+", "_", (recipe.source.run or folder.resolve().name).lower())
    package = out / name
    shutil.copytree(folder, package / "agent", ignore=_ignoring(out))
    shutil.copy(PARTS / "taskset.py", package / "__init__.py")
    shutil.copy(PARTS / "run_agent.py", package)
    fields = rollout.model_dump(mode="json", include={"agent", "reward", "agent_sees"})
    (package / "recipe.json").write_text(json.dumps(fields, indent=1))
    lines = [f"{task.model_dump_json()}\n" for task in tasks]
    (package / "tasks.jsonl").write_text("".join(lines))
    (out / "pyproject.toml").write_text(PROJECT.format(name=name))
    return name


def _ignoring(out: Path) -> Callable[[str, list[str]], set[str]]:
    """Return which files of a folder are left out: also the new package, if it is in the folder."""
    patterns = shutil.ignore_patterns(*LEFT_OUT)

    def ignore(folder: str, names: list[str]) -> set[str]:
        own = {name for name in names if Path(folder, name).resolve() == out.resolve()}
        return patterns(folder, names) | own

    return ignore


def _exportable(recipe: Recipe) -> Rollout:
    """Return the [rollout] section of a recipe.

    Raises:
        BadExport: when verifiers cannot run it.
    """
    rollout = recipe.rollout
    if rollout is None:
        raise BadExport("The recipe has no [rollout], so it has no tasks, agent and reward.")
    parts = {
        "environment": rollout.environment,
        "remote": rollout.remote,
        "sandbox": rollout.sandbox,
        "[[service]]": recipe.service,
        'use = "judge"': recipe.judges,
        "[prompt]": recipe.prompt,
    }
    if part := next((name for name, value in parts.items() if value), None):
        raise BadExport(
            f"The recipe has {part}, which an environment of verifiers cannot run. Leave it out in "
            "a copy of the recipe, or train with ltrain."
        )
    if rollout.reward is None or not is_reference(rollout.reward):
        raise BadExport(
            f"The reward is '{rollout.reward}'. Name a function, as in scores:reward: an "
            "environment calls it after each episode."
        )
    return rollout
