"""`ltrain.train`: an online run from Python, with agents of a module or of the session."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import ValidationError

from ltrain_instrument import settings
from ltrain_instrument.files import make_private, path_component, write_file
from ltrain_train.errors import BadRun, describe_fault
from ltrain_train.loop import command
from ltrain_train.rollout import BadTasks, Task
from ltrain_train.runs import Journal, missing_keys, plan_run
from ltrain_train.session.functions import write_functions
from ltrain_transforms.datasets import Dataset, dataset_folder
from ltrain_transforms.recipe import Recipe

Agent = str | Callable[..., Any]
"""`module:function`, a command, or a function."""
Tasks = str | Path | Sequence[Mapping[str, Any]]
"""A JSONL file, or the tasks."""


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """A run that has ended, and what it left."""

    journal: Journal
    home: Path

    @property
    def name(self) -> str:
        """The run's name, as in `ltrain show run:NAME`."""
        return self.journal.run

    @property
    def versions(self) -> dict[str, int]:
        """The latest version of each trained policy."""
        return self.journal.latest

    @property
    def policy(self) -> str:
        """The trained policy, of several the first one."""
        return next(iter(self.versions))

    @property
    def version(self) -> int:
        """The latest version of `policy`."""
        return self.versions[self.policy]

    @property
    def waves(self) -> pl.DataFrame:
        """One row for each wave and policy: their names, scores, rollouts, rows, each metric."""
        rows = [
            {
                "policy": wave.policy,
                "mode": wave.mode,
                "wave": wave.wave,
                "version": wave.version,
                "published": wave.published,
                "score": wave.score,
                "rollouts": wave.rollouts,
                "rows": wave.samples,
                **wave.scores,
                **wave.metrics,
            }
            for wave in self.journal.waves
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def curve(self, mode: str = "val", policy: str | None = None) -> pl.DataFrame:
        """Return the score of each wave of a mode: columns `wave`, `version` and `score`.

        Args:
            mode: `val`, `test` or `train`.
            policy: whose; default: `policy`.
        """
        waves = self.journal.of(policy or self.policy).waves
        points = [(wave.wave, wave.version, wave.score) for wave in waves if wave.mode == mode]
        schema = {"wave": pl.Int64, "version": pl.Int64, "score": pl.Float64}
        return pl.DataFrame(points, schema=schema, orient="row")

    def dataset(self, wave: int, policy: str | None = None) -> Dataset:
        """Return the dataset that a policy was trained on in a wave.

        Args:
            wave: number of the training wave.
            policy: the policy; default: `policy`.

        Raises:
            NoDataset: when there is none.
        """
        of_several = (policy or self.policy) if len(self.versions) > 1 else None
        return Dataset.open(dataset_folder(self.home, self.name, "train", wave, of_several))


def train(
    recipe: Recipe | str | Path | Mapping[str, Any],
    *,
    agent: Agent | None = None,
    reward: Agent | None = None,
    tasks: Tasks | None = None,
    validation: Tasks | None = None,
    test: Tasks | None = None,
    model: str | Path | None = None,
    updates: int | None = None,
) -> TrainedRun:
    """Train online, as `ltrain run` does, and return the run.

    It starts what it needs, prints a row for each wave, and stops what it started. A call with the
    same arguments continues an unfinished run.

    Args:
        recipe: a recipe, its TOML file, or its sections.
        agent: replaces the recipe's `rollout.agent`; a function may be one of this session.
        reward: replaces `rollout.reward`.
        tasks: replaces `rollout.tasks`.
        validation: replaces `rollout.validation`.
        test: replaces `rollout.test`.
        model: directory of the model that becomes version 0 of a new policy.
        updates: replaces `train.updates`.

    Raises:
        BadRecipe: when the recipe cannot be read.
        BadRun: when the run lacks tasks, an agent or a reward, or a function cannot be stored.
        BadTasks: when a task has no id or no input.
    """
    loaded, folder = _load_recipe(recipe)
    home = settings.HOME.read()
    name = loaded.source.run or folder.resolve().name
    session = home.resolve() / "sessions" / path_component(name)
    files = {"tasks": tasks, "validation": validation, "test": test}
    arguments = {"agent": agent, "reward": reward, **files}
    named: dict[str, Any] = {role: each for role, each in arguments.items() if each is not None}
    if missing := missing_keys(loaded, named):
        raise BadRun(
            f"A run needs tasks, an agent and a reward, and it has no {missing[0]}. Pass "
            f"{missing[0]}=…, or set it under [rollout] in the recipe."
        )
    if functions := {role: each for role, each in named.items() if callable(each)}:
        named |= write_functions(session, functions, [str(folder.resolve()), *sys.path])
    for role in files:
        if role in named:
            named[role] = _write_tasks(session, role, named[role])
    model = None if model is None else Path(model)
    plan = plan_run(loaded, folder, model=model, updates=updates, **named)
    return TrainedRun(command.train_online(plan, as_json=False), home)


def _load_recipe(recipe: Recipe | str | Path | Mapping[str, Any]) -> tuple[Recipe, Path]:
    """Return the recipe, and the folder in which its modules and files are."""
    if isinstance(recipe, Recipe):
        return recipe, Path.cwd()
    if isinstance(recipe, Mapping):
        return Recipe.from_sections(recipe), Path.cwd()
    path = Path(recipe)
    return Recipe.load(path), path.parent


def _write_tasks(session: Path, role: str, tasks: Tasks) -> str:
    """Return the path of a file with the tasks."""
    if isinstance(tasks, str | Path):
        return str(Path(tasks).resolve())
    try:
        lines = [Task.model_validate(each).model_dump_json() for each in tasks]
    except ValidationError as error:
        raise BadTasks(f"{role}: a task has a fault: {describe_fault(error)}.") from error
    text = "".join(f"{line}\n" for line in lines)
    make_private(session)
    # other tasks are another file, so that a run goes on only with its own
    file = session / f"{role}-{sha256(text.encode()).hexdigest()[:12]}.jsonl"
    write_file(file, text, 0o600)
    return str(file.resolve())
