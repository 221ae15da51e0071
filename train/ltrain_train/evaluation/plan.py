"""The plan of `ltrain eval`, from its options and the recipe: versions, tasks, agent, reward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ltrain_train.errors import BadRun, DifferentBases
from ltrain_train.policy import Policies, find_artifact, read_adapter_config
from ltrain_train.publishing import parse_version
from ltrain_train.rollout import AgentProgram, Task, load_tasks
from ltrain_train.runs import environment_fields, serve_arguments
from ltrain_train.workers import find_python
from ltrain_transforms.recipe import DEFAULT, Recipe, Reward, Rollout, Serve, Train


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """The options of `ltrain eval`; what is None comes from the recipe."""

    policies: Sequence[str]
    """NAME@VERSION, or NAME for the current version; the first is the baseline."""
    tasks: Path | None = None
    recipe: Path | None = None
    samples: int | None = None
    temperature: float | None = None
    metric: str | None = None
    run: str | None = None
    seed: int = 0
    rollout: Mapping[str, Any]
    """Keys of the recipe's [rollout] section, such as `agent` and `reward`."""


@dataclass(frozen=True, slots=True)
class EvaluatedVersion:
    """A version, and the number of its wave."""

    wave: int
    policy: str
    version: int

    def __str__(self) -> str:
        return f"{self.policy}@{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """An evaluation whose inputs were read and checked."""

    home: Path
    name: str
    """Name of the run; a number is added if there is one of this name."""
    versions: Sequence[EvaluatedVersion]
    tasks: Sequence[Task]
    samples: int
    temperature: float
    metric: str | None
    seed: int
    program: AgentProgram
    rewards: Sequence[Reward]
    trust: Sequence[str]
    span_timeout: float
    upstream: str | None
    serve: Sequence[str]
    """Arguments of `ltrain serve`."""

    @property
    def planned(self) -> int:
        """Number of rollouts of one version."""
        return len(self.tasks) * self.samples


def make_plan(options: EvaluationOptions, home: Path) -> EvaluationPlan:
    """Read and check what the options and the recipe name."""
    return plan_evaluation(*_read_recipe(options.recipe), options, home)


def plan_evaluation(
    recipe: Recipe | None, folder: Path, options: EvaluationOptions, home: Path
) -> EvaluationPlan:
    """Read and check what the options and a recipe name.

    Args:
        folder: that of the recipe's files.
    """
    policies = Policies(home)
    versions = find_versions(policies, options.policies)
    section = recipe.rollout.model_dump() if recipe and recipe.rollout else {}
    overrides = {name: value for name, value in options.rollout.items() if value is not None}
    section |= {"remote": False} | overrides if "agent" in overrides else overrides
    if recipe is not None and section.get("environment") and options.tasks is None:
        named = recipe.model_copy(update={"rollout": Rollout.model_validate(section)})
        section |= environment_fields(named, folder, home)["rollout"]
    tasks = options.tasks or _find_validation(folder, section)
    _require_agent(section, judged=bool(recipe and recipe.judges))
    find_python(section.get("python"), folder)
    rollout = Rollout.model_validate(section | {"tasks": str(tasks)})
    samples, temperature = _held_out_sampling(options, rollout)
    serve, train = (recipe.serve, recipe.train) if recipe else (Serve(), Train())
    return EvaluationPlan(
        home=home,
        name=options.run or f"eval-{tasks.stem}",
        versions=versions,
        tasks=load_tasks(tasks),
        samples=samples,
        temperature=temperature,
        metric=options.metric,
        seed=options.seed,
        program=_program(rollout, folder, recipe),
        rewards=recipe.reward if recipe else (),
        trust=recipe.source.trust if recipe else (),
        span_timeout=train.span_timeout,
        upstream=serve.upstream,
        serve=serve_arguments(*_with_adapters(policies, versions, serve, train), folder),
    )


def _held_out_sampling(options: EvaluationOptions, rollout: Rollout) -> tuple[int, float]:
    """Return rollouts and temperature of a task: those of a validation, unless an option differs.

    Raises:
        BadRun: when the rollouts of a task would be all alike.
    """
    samples = options.samples or rollout.validation_samples
    own = rollout.model_copy(update={"validation_samples": 1}) if options.samples else rollout
    temperature = options.temperature
    temperature = own.held_out_temperature if temperature is None else temperature
    if samples > 1 and not temperature:
        raise BadRun(
            f"--samples {samples} needs a temperature above 0, because greedy rollouts of "
            "a task are all alike. Add --temperature 1, or leave out --samples."
        )
    return samples, temperature


def _program(rollout: Rollout, folder: Path, recipe: Recipe | None) -> AgentProgram:
    """Return the program of a [rollout] section; nothing is trained on the calls of its agent."""
    program = AgentProgram.from_section(rollout, folder, recipe)
    return replace(program, allow=(), pin_version=False)


def _with_adapters(
    policies: Policies, versions: Sequence[EvaluatedVersion], serve: Serve, train: Train
) -> tuple[Serve, Train]:
    """Return the sections that let the gateway load the adapters among the versions."""
    paths = [policies.path(each.policy, each.version) for each in versions]
    ranks = [read_adapter_config(path).r for path in paths if find_artifact(path) == "adapter"]
    publish = "adapter" if ranks else "merged"  # nothing is published: a trial would be in vain
    rank = max(ranks, default=train.lora_rank)
    return serve.model_copy(update={"publish": publish}), train.model_copy(
        update={"lora_rank": rank}
    )


def find_versions(policies: Policies, identifiers: Sequence[str]) -> list[EvaluatedVersion]:
    """Return the versions that `identifiers` name, after checking that they can be compared."""
    versions = []
    for wave, identifier in enumerate(identifiers):
        policy, version = parse_version(policies, identifier, default_current=True)
        policies.verify(policy, version)
        policies.current(policy)  # the gateway starts with it
        versions.append(EvaluatedVersion(wave, policy, version))
    first, *others = versions
    for other in others:
        _require_same_base(policies, first, other)
    return versions


def _require_same_base(
    policies: Policies, first: EvaluatedVersion, other: EvaluatedVersion
) -> None:
    bases = [policies.read_version(each.policy, 0).base_digests() for each in (first, other)]
    parts = [part for part in bases[0] | bases[1] if bases[0].get(part) != bases[1].get(part)]
    if parts:
        raise DifferentBases(
            f"{first} and {other} have different bases: the {' and the '.join(parts)} of "
            f"{first.policy}@0 and {other.policy}@0 differ. One [serve] section with its chat "
            "template and tool parser does not fit both, so their scores are not compared. "
            "Evaluate each with a command of its own."
        )


def _read_recipe(path: Path | None) -> tuple[Recipe | None, Path]:
    """Return the recipe, if one is named or in the working directory, and its folder."""
    if path is None and not DEFAULT.exists():
        return None, Path.cwd()
    path = path or DEFAULT
    return Recipe.load(path), path.parent


def _find_validation(folder: Path, section: Mapping[str, Any]) -> Path:
    if not section.get("validation"):
        raise BadRun(
            "An evaluation needs tasks. Name a JSONL file, as in `ltrain eval tasks.jsonl …`, or "
            "set [rollout] validation in the recipe."
        )
    return folder / str(section["validation"])


def _require_agent(section: Mapping[str, Any], *, judged: bool) -> None:
    names = (*(() if section.get("remote") else ("agent",)), *(() if judged else ("reward",)))
    if missing := [f"--{name}" for name in names if not section.get(name)]:
        raise BadRun(
            f"An evaluation needs an agent and a reward function. Add {' and '.join(missing)}, or "
            "a recipe with a [rollout] section (--recipe FILE; default: ltrain.toml)."
        )
