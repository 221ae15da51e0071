"""The plan of a run: its recipe, the policies that it trains, and the folders of its files."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ltrain_instrument import settings
from ltrain_instrument.identity import SourceMode
from ltrain_train.errors import BadRun
from ltrain_train.gpu import is_usable
from ltrain_train.policy import VLLM_DTYPES, Policies, current_prompts, resolve_dtype
from ltrain_train.processes import RunLock
from ltrain_train.rollout import AgentProgram, list_tasks
from ltrain_train.runs.gpu_shares import GpuShares, find_gpus, share_gpu
from ltrain_train.runs.services import Services
from ltrain_transforms.recipe import Colocate, Policy, Recipe, Rollout, Serve, Train

NO_SWAP = (
    'train.colocate = "swap" has no effect: vLLM and the learner do not share a GPU of this '
    "machine."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The recipe and the folders of a run."""

    recipe: Recipe
    folder: Path
    """Folder of the recipe's files and modules."""
    home: Path
    model: Path | None = None
    """Model directory that becomes version 0 of a new policy."""
    shares: GpuShares | None = None
    """How vLLM and the learner divide the GPU; None on a CPU."""

    @property
    def swaps(self) -> bool:
        """Whether vLLM and the learner have the GPU in turn."""
        return self.shares is not None and self.shares.swap

    def beside_gateway(self, url: str) -> Self:
        """Return the plan without a swap, for a run whose gateway runs already.

        Raises:
            BadRun: when the recipe wants the swap.
        """
        if not self.swaps:
            return self
        if self.recipe.train.colocate == "swap":
            raise BadRun(
                'train.colocate = "swap" needs the gateway that the run starts, and another one '
                f'answers at {url}. Stop it, or set train.colocate = "split".'
            )
        return replace(self, shares=share_gpu(self.recipe, self.models(), find_gpus(), "split"))

    def describe_memory(self) -> str:
        """Return how vLLM and the learner share the GPU's memory; '' on a CPU."""
        if self.recipe.train.colocate == "swap" and not self.swaps:
            return NO_SWAP
        return "" if self.shares is None else self.shares.describe()

    @property
    def policy(self) -> str:
        """Name of the trained policy, of several the first one."""
        return self.recipe.trained[0].name

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the trained policies."""
        return tuple(policy.name for policy in self.recipe.trained)

    @property
    def served(self) -> tuple[str, ...]:
        """Names of the policies that agents may call, the default one first."""
        frozen = (policy.name for policy in self.recipe.policy if policy.frozen)
        return (*self.trained, *frozen)

    def for_policy(self, name: str) -> Self:
        """Return the plan of one of the trained policies."""
        return replace(self, recipe=self.recipe.for_policy(name))

    @property
    def train(self) -> Train:
        """The training settings, with `dtype` and the tokens of a micro-batch for this machine."""
        train = resolve_dtype(self.recipe.train)
        if self.shares is None or train.tokens_per_micro_batch is not None:
            return train
        return train.model_copy(update={"tokens_per_micro_batch": self.shares.tokens})

    @property
    def name(self) -> str:
        """Name of the run: the recipe's `source.run`, or the folder's name."""
        return self.recipe.source.run or self.folder.resolve().name

    @property
    def serve_arguments(self) -> list[str]:
        """The arguments of `ltrain serve` that the recipe's [serve] sets.

        On a GPU they have vLLM's GPUs, or its part of the one that it shares with the learner.

        Raises:
            BadRun: when the chat template does not exist.
        """
        trains = [self.for_policy(name).train for name in self.trained]
        largest = {
            "lora_rank": max(train.lora_rank for train in trains),
            "max_staleness": max(train.max_staleness for train in trains),
        }
        serve = self.recipe.serve
        if self.shares is not None:
            # an option of the recipe comes later, so vLLM takes that one
            options, gpus = (*self.shares.options, *serve.vllm), serve.gpus or self.shares.gpus
            serve = serve.model_copy(update={"vllm": options, "gpus": gpus})
        return serve_arguments(serve, trains[0].model_copy(update=largest), self.folder)

    def models(self) -> dict[str, Path]:
        """Return the directory of each policy's weights, by its name, of those that have one."""
        found = {policy.name: self.find_model(policy) for policy in self.recipe.policy}
        return {name: path for name, path in found.items() if path and _is_model(path)}

    def find_model(self, policy: Policy) -> Path | None:
        """Return the directory of a policy's weights, which may not exist; None if none is named.

        They are those of its current version, or else of the model that becomes version 0.
        """
        policies = Policies(self.home)
        if policies.versions(policy.name):
            return policies.weights_path(policy.name, policies.current(policy.name))
        return self.model if policy.model is None else self.folder / policy.model

    def policies(self) -> Policies:
        """Return the home's policies, after registering models as version 0 of the new ones.

        Raises:
            BadRun: when one of the recipe's policies is a prompt.
        """
        policies = Policies(self.home)
        for policy in self.recipe.policy:
            if policy.model is None and self.model is not None:
                policies.register_new(policy.name, self.model)
            elif policy.model is not None and not policies.versions(policy.name):
                policies.register(policy.name, self.folder / policy.model)
        prompts = current_prompts(policies)
        if prompt := next((each.name for each in self.recipe.policy if each.name in prompts), None):
            raise BadRun(
                f"The policy '{prompt}' is a prompt, which has no weights to train. Name the model "
                "that answers in [[policy]], and the prompt in [prompt] with its critic: `ltrain "
                "apo` optimizes it."
            )
        return policies

    def services(self, lock: RunLock) -> Services:
        """Return the store and the gateway of the run; they hold `lock` until they have ended."""
        return Services(
            self.home, policies=self.served, serve=self.serve_arguments, keep_open=lock.descriptors
        )

    @property
    def program(self) -> AgentProgram:
        """The agent and its rewards.

        Raises:
            BadRun: when the recipe has no rollout section.
        """
        return AgentProgram.from_section(self.rollout, self.folder, self.recipe)

    @property
    def rollout(self) -> Rollout:
        """The recipe's rollout section.

        Raises:
            BadRun: when the recipe has none.
        """
        if self.recipe.rollout is None:
            raise BadRun(
                "An online run needs tasks and an agent: a [rollout] section in the recipe, or "
                "--tasks FILE --agent module:function --reward module:function."
            )
        return self.recipe.rollout


def _is_model(directory: Path) -> bool:
    return (directory / "config.json").is_file()


def serve_arguments(serve: Serve, train: Train, folder: Path) -> list[str]:
    """Return the arguments of `ltrain serve` that a recipe's [serve] sets.

    Raises:
        BadRun: when the chat template does not exist.
    """
    find_chat_template(serve, folder)
    return serve.arguments(folder, VLLM_DTYPES[resolve_dtype(train).dtype], train)


def find_chat_template(serve: Serve, folder: Path) -> Path | None:
    """Return the file of the chat template that a recipe's [serve] names; None: the model's own.

    Raises:
        BadRun: when it does not exist.
    """
    if serve.chat_template is None or (folder / serve.chat_template).is_file():
        return None if serve.chat_template is None else folder / serve.chat_template
    raise BadRun(
        f"serve.chat_template = '{serve.chat_template}': there is no such file in "
        f"{folder.resolve()}. Name a Jinja file."
    )


def make_plan(path: Path, **options: Any) -> Plan:
    """Return the plan of a run by the recipe in a file, with the options of `plan_run`."""
    return plan_run(Recipe.load(path), path.parent, **options)


def missing_keys(recipe: Recipe, overrides: Mapping[str, object]) -> list[str]:
    """Return the keys that a recipe without a [rollout] section and the overrides lack."""
    required = ("tasks", "agent") if recipe.judges else ("tasks", "agent", "reward")
    return [key for key in required if recipe.rollout is None and key not in overrides]


def environment_fields(recipe: Recipe, folder: Path, home: Path) -> dict[str, Any]:
    """Return the sections of a recipe that its environment completes: its tasks and its agents.

    Raises:
        EnvironmentFailed: when the environment cannot list its tasks.
    """
    assert recipe.rollout is not None
    listed = list_tasks(recipe.rollout, folder, home, recipe.secrets)
    rollout = recipe.rollout.model_dump(exclude_unset=True)
    files = {key: file for key, file in listed.files.items() if not rollout.get(key)}
    policies = [policy.model_dump(exclude_unset=True) for policy in recipe.policy]
    if len(policies) == 1 and not policies[0].get("agents"):
        policies[0]["agents"] = listed.agents
    return {"rollout": rollout | files, "policy": policies}


def plan_run(
    recipe: Recipe,
    folder: Path,
    *,
    model: Path | None,
    updates: int | None,
    once: bool = False,
    mode: SourceMode | None = None,
    **rollout: Any,
) -> Plan:
    """Return the plan of a run, by a recipe with some keys replaced.

    Args:
        folder: folder of its files and modules.
        model: model directory that becomes version 0 of a new policy.
        updates: replaces `train.updates`.
        once: whether the run is an offline one even if the recipe has a [rollout] section.
        mode: replaces the recipe's `source.mode`; an online run trains on its own rollouts, whose
            mode is `train`.
        rollout: replaces keys of [rollout]; None replaces nothing.

    Raises:
        BadRecipe: when a replaced key has a wrong value.
        BadRun: when an online run lacks tasks, an agent or a reward function.
    """
    overrides = {name: value for name, value in rollout.items() if value is not None}
    if overrides and (missing := missing_keys(recipe, overrides)):
        names = ", ".join(f"--{name}" for name in sorted(missing))
        raise BadRun(
            f"An online run needs tasks, an agent and a reward function. Add {names}, or the same "
            "keys under [rollout] in the recipe."
        )
    section = (recipe.rollout.model_dump() if recipe.rollout else {}) | overrides
    if "agent" in overrides:
        section["remote"] = False
    online = bool(section) and not once
    recipe = recipe.with_mode("train" if online else mode or recipe.source.mode)
    fields = recipe.model_dump(by_alias=True, exclude_unset=True) | {"rollout": section or None}
    if updates is not None:
        fields["train"] = recipe.train.model_dump(exclude_unset=True) | {"updates": updates}
    home = settings.HOME.read()
    if online and section.get("environment"):
        fields |= environment_fields(Recipe.from_sections(fields), folder, home)
    plan = Plan(recipe=Recipe.from_sections(fields), folder=folder, home=home, model=model)
    if not is_usable():
        return plan
    way: Colocate = plan.recipe.train.colocate if online else "split"  # it starts no vLLM
    return replace(plan, shares=share_gpu(plan.recipe, plan.models(), find_gpus(), way))
