"""`ltrain.train`: an online run from Python, with agents of a module or of the session."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import cloudpickle
import polars as pl
from pydantic import ValidationError

from ltrain_instrument import settings
from ltrain_instrument.files import make_private, path_component, write_file
from ltrain_train.errors import BadRun, describe_fault
from ltrain_train.loop import command
from ltrain_train.rollout import BadTasks, Task
from ltrain_train.runs import Journal, missing_keys, plan_run
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


MODULE = '''"""Functions of a Python session; `ltrain.train` wrote this file."""

import sys
from pathlib import Path

import cloudpickle

sys.path[:0] = [each for each in {path!r} if each not in sys.path]
functions = cloudpickle.loads(Path(__file__).with_suffix(".pickle").read_bytes())
globals().update(functions)
'''


def write_functions(
    folder: Path, functions: Mapping[str, Callable[..., Any]], path: list[str]
) -> dict[str, str]:
    """Write functions to a module in `folder`; return the reference of each by its name.

    A function of the session, such as one that a notebook defines, is stored with what it uses; one
    of a module is imported again. The module's name has the digest of its content, so that a
    changed function is another agent.

    Args:
        folder: private folder of the module.
        functions: by name.
        path: folders in which the worker processes also look for modules.
    """
    try:
        content = cloudpickle.dumps(dict(functions))
    except Exception as error:  # pickle raises what the objects raise
        names = " and ".join(functions)
        raise BadRun(
            f"The {names} of this session cannot be sent to worker processes: {error}. Create "
            "clients, locks and open files inside the function, or move it into a module and name "
            "it as 'module:function'."
        ) from error
    text = MODULE.format(path=path)
    module = f"session_{sha256(content + text.encode()).hexdigest()[:12]}"
    make_private(folder)
    write_file(folder / f"{module}.pickle", content, 0o600)
    write_file(folder / f"{module}.py", text, 0o600)
    return {name: f"{folder / module}.py:{name}" for name in functions}
