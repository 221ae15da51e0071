"""The recipe: one TOML file with executions, agents, rules, credit and filters.

It is checked on load. Every dataset, training span and checkpoint has its digest, which leaves out
budgets.
"""

import tomllib
from collections.abc import Mapping
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, field_serializer, field_validator, model_validator

from ltrain_instrument.errors import UnknownName
from ltrain_instrument.identity import SourceMode
from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe.credit import DEFAULT_ESTIMATOR, PRODUCTION_ESTIMATOR, Credit
from ltrain_transforms.recipe.deploy import Deploy
from ltrain_transforms.recipe.fault import describe_error
from ltrain_transforms.recipe.finetune import Dpo, Sft
from ltrain_transforms.recipe.judge import Judge
from ltrain_transforms.recipe.policy import Policy
from ltrain_transforms.recipe.prompt import CriticModel, PromptSearch
from ltrain_transforms.recipe.reward import Metrics, Reward, SignalReward
from ltrain_transforms.recipe.rollout import SANDBOX_KEYS, Rollout
from ltrain_transforms.recipe.section import Section, first_duplicate
from ltrain_transforms.recipe.selection import Filter, Source, Watch
from ltrain_transforms.recipe.serve import Serve
from ltrain_transforms.recipe.service import Service
from ltrain_transforms.recipe.train import TINKER_KEY, Critic, Tinker, Train

DEFAULT = Path("ltrain.toml")
"""The recipe that commands read by default."""


class Recipe(Section):
    source: Source = Source()
    rollout: Rollout | None = None
    service: tuple[Service, ...] = ()
    policy: tuple[Policy, ...] = Field(min_length=1)
    reward: tuple[Reward, ...] = Field(min_length=1)
    credit: Credit = Credit()
    filter: Filter = Filter()
    train: Train = Train()
    sft: Sft = Sft()
    dpo: Dpo = Dpo()
    serve: Serve = Serve()
    prompt: PromptSearch | None = None
    watch: Watch = Watch()
    deploy: Deploy = Deploy()

    @field_validator("policy")
    @classmethod
    def _unique_policies(cls, policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
        if name := first_duplicate(policy.name for policy in policies):
            raise ValueError(f"Two policies are named '{name}'. Merge both into one [[policy]].")
        if all(policy.frozen for policy in policies):
            raise ValueError("Every [[policy]] is frozen. Remove `frozen` from one to train it.")
        return policies

    @field_validator("policy")
    @classmethod
    def _separate_agents(cls, policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
        for first, second in combinations(policies, 2):
            common = set(first.agents) & set(second.agents)
            if common and first.narrows == second.narrows:
                raise ValueError(
                    f"The policies '{first.name}' and '{second.name}' both have the agent "
                    f"'{min(common)}'. Remove it from one."
                )
        return policies

    @field_validator("reward")
    @classmethod
    def _unique_rewards(cls, rewards: tuple[Reward, ...]) -> tuple[Reward, ...]:
        if name := first_duplicate(reward.name for reward in rewards):
            raise ValueError(f"Two rewards are named '{name}'. Give each its own name.")
        return rewards

    @field_serializer("reward")
    def _with_the_keys_of_their_kinds(self, rewards: tuple[Reward, ...]) -> Any:
        return rewards  # of type Any, so that each reward is written by its own class

    @field_validator("service")
    @classmethod
    def _unique_services(cls, services: tuple[Service, ...]) -> tuple[Service, ...]:
        if name := first_duplicate(service.name for service in services):
            raise ValueError(
                f"Two services are named '{name}'. Set count = 2 for two instances of a "
                "service, or rename one."
            )
        return services

    @property
    def metrics(self) -> Metrics:
        """The metrics whose exemplars its rules on signals read."""
        read = [reward.metrics for reward in self.reward if isinstance(reward, SignalReward)]
        names = [name for metrics in read if metrics is not None for name in metrics]
        return None if None in read else tuple(sorted({*names}))

    @model_validator(mode="after")
    def _sound_deployment(self) -> Self:
        if self.deploy.share and (self.train.backend == "tinker" or not self.train.lora_rank):
            raise ValueError(
                "share of [deploy] needs versions that a server can hold beside others: LoRA "
                'adapters of the backend "verl". Set lora_rank in [train], or share = 0.'
            )
        if self.deploy.shadow and not self.deploy.share:
            raise ValueError(
                "shadow of [deploy] needs share: the share of the conversations that a candidate "
                "answers, first in the shadow, then seen. Set share, or remove shadow."
            )
        rollout = self.rollout
        has_tasks = rollout is not None and (rollout.validation or rollout.environment)
        if self.deploy.gates.eval is not None and not has_tasks:
            raise ValueError(
                "eval of [deploy.gates] needs held-out tasks, and an agent that solves them. Set "
                "validation in [rollout], or remove eval."
            )
        gates = self.deploy.gates
        if gates.replay is not None and not any(each.url for each in self.judges.values()):
            raise ValueError(
                "replay of [deploy.gates] needs a judge of the answers. Add a [[reward]] with use "
                '= "judge" and the server of its model, or remove replay.'
            )
        if gates.safety and gates.eval is None and gates.replay is None:
            raise ValueError(
                "safety of [deploy.gates] compares the rollouts of eval and replay. Set one of "
                "them, too; 1 allows any score."
            )
        return self

    @model_validator(mode="after")
    def _sound_policies(self) -> Self:
        names = [reward.name for reward in self.reward]
        for policy in self.policy:
            for name in policy.rewards:
                if name not in names:
                    raise ValueError(str(UnknownName("reward", name, names)))
        for policy in self.trained:
            try:
                self.for_policy(policy.name)
            except ValidationError as error:
                fault = describe_error(type(self), error)
                raise ValueError(f"For the policy '{policy.name}': {fault}") from error
        return self

    @model_validator(mode="after")
    def _sampled_by_tinker(self) -> Self:
        if self.serve.on == "tinker":
            for policy in self.trained:
                if policy.sampling.get("temperature", 1.0) != 1.0:
                    raise ValueError(
                        f"The policy '{policy.name}' is sampled at another temperature than 1, and "
                        "a Tinker server reports log-probabilities at temperature 1 only. Set "
                        "sampling.temperature = 1.0 in [[policy]]."
                    )
        return self

    @model_validator(mode="after")
    def _scored_results(self) -> Self:
        if self.rollout is None:
            return self
        if self.rollout.reward is None and not self.judges:
            raise ValueError(
                "[rollout] has no `reward`. Name a function, a command or a URL, or add a "
                '[[reward]] with use = "judge".'
            )
        written = {*self.judges, *(["reward"] if self.rollout.reward else [])}
        for reward in self.reward:
            if reward.from_ == "any" and reward.evaluation in written:
                raise ValueError(
                    f"[[reward]] '{reward.name}' takes '{reward.evaluation}' from anyone, and the "
                    'runner writes it. Set from = "runner", or let the agent or the user write '
                    "another name."
                )
        for name, judge in self.judges.items():
            if judge.url is None:
                raise ValueError(
                    f"The judge '{name}' has the model '{judge.model}', which has no server. Add "
                    f'[[serve.route]] with model = "{judge.model}" and its url, or set url in the '
                    "params of the judge."
                )
        return self

    @model_validator(mode="after")
    def _local_services(self) -> Self:
        if self.service and self.rollout is not None and self.rollout.remote:
            raise ValueError(
                f"[[service]] '{self.service[0].name}' runs on this machine, and with [rollout] "
                "remote = true the agent runs on others. Remove `remote` and name the agent, or "
                "start the service yourself where the workers are."
            )
        return self

    @model_validator(mode="after")
    def _scored_if_scheduled(self) -> Self:
        rollout = self.rollout
        if rollout is None or any(reward.evaluation is not None for reward in self.reward):
            return self
        keys = {"refill_tasks": rollout.refill_tasks > 0}
        keys["target_score"] = rollout.target_score is not None
        for name in (name for name, used in keys.items() if used):
            raise ValueError(
                f"[rollout] {name} needs the scores of rollouts, and no [[reward]] has an "
                "evaluation. Add one, or remove the key."
            )
        return self

    @model_validator(mode="after")
    def _prompt_can_be_scored(self) -> Self:
        if self.prompt is None:
            return self
        critic = self.critic_model
        if critic.url is None:
            raise ValueError(
                f"The critic of [prompt] has the model '{critic.model}', which has no server. "
                f'Add [[serve.route]] with model = "{critic.model}" and its url, or set url '
                "in [prompt.critic]."
            )
        if self.rollout is None or not self.rollout.has_held_out:
            raise ValueError(
                "[prompt] needs tasks to criticise prompts on, and held-out tasks to compare them: "
                "add [rollout] with `tasks` and `validation`."
            )
        if all(reward.evaluation is None for reward in self.reward):
            raise ValueError(
                "[prompt] needs the scores of rollouts, and no [[reward]] has an evaluation. Add "
                "one."
            )
        if self.prompt.policy in {policy.name for policy in self.policy}:
            raise ValueError(
                f"[prompt] policy = '{self.prompt.policy}' is also a [[policy]], which is the "
                "model that answers. Give the prompt another name."
            )
        return self

    @model_validator(mode="after")
    def _with_default_estimator(self) -> Self:
        name = PRODUCTION_ESTIMATOR if self.source.mode == "prod" else DEFAULT_ESTIMATOR
        # the recipe is frozen once this has returned
        object.__setattr__(self, "credit", self.credit.with_default_estimator(name))
        return self

    @model_validator(mode="after")
    def _with_critic(self) -> Self:
        estimator = self.credit.outcome.estimator
        if self.train.critic is not None and not self.credit.uses_critic:
            raise ValueError(
                f"[train.critic] has no effect with credit.outcome.estimator = '{estimator}'. Set "
                "the estimator to 'gae', or remove the section."
            )
        if self.credit.uses_critic and self.train.backend == "tinker":
            raise ValueError(
                f"credit.outcome.estimator = '{estimator}' needs a critic, and the Tinker API "
                "trains none. Choose another estimator."
            )
        if self.train.critic is None and self.credit.uses_critic:
            train = self.train.model_copy(update={"critic": Critic()})
            object.__setattr__(self, "train", train)
        return self

    @property
    def trained(self) -> tuple[Policy, ...]:
        """The policies that are trained, in the order in which they select calls."""
        return tuple(policy for policy in self.policy if not policy.frozen)

    def for_policy(self, name: str) -> Self:
        """Return the recipe by which one of the trained policies is trained.

        It has the policy's rewards and its keys of [train]; the calls of the other policies are
        environment.
        """
        own = next(policy for policy in self.trained if policy.name == name)
        if len(self.trained) == 1 and not own.rewards and not own.train:
            return self
        fields = self.model_dump(by_alias=True, exclude_unset=True)
        for policy in fields["policy"]:
            policy |= {"frozen": policy["name"] != name, "rewards": (), "train": {}}
        rewards = own.rewards or tuple(reward.name for reward in self.reward)
        fields["reward"] = [each for each in fields["reward"] if each["name"] in rewards]
        fields["train"] = fields.get("train", {}) | own.train
        return self.model_validate(fields)

    def select_policy(self, name: str | None) -> Self:
        """Return the recipe of one policy, or without a name that of all.

        Raises:
            BadRecipe: when no trained policy has the name, or without a name when policies have
                rewards of their own, so that there is no dataset of all.
        """
        names = [policy.name for policy in self.trained]
        if name is not None and name not in names:
            raise BadRecipe(str(UnknownName("trained policy", name, names)))
        if name is None and len(names) > 1 and any(policy.rewards for policy in self.trained):
            raise BadRecipe(
                f"The policies {', '.join(names)} have rewards of their own, so each has its own "
                "dataset. Choose one with --policy."
            )
        return self if name is None else self.for_policy(name)

    def with_mode(self, mode: SourceMode) -> Self:
        """Return the recipe for executions of another mode, with the estimator that fits it."""
        if mode == self.source.mode:
            return self
        fields = self.model_dump(by_alias=True, exclude_unset=True)
        return self.model_validate(fields | {"source": fields.get("source", {}) | {"mode": mode}})

    @property
    def judges(self) -> dict[str, Judge]:
        """The judges by the name of their evaluation, with the servers of their routes."""
        routes = {route.model: route for route in self.serve.route}
        return {
            str(reward.evaluation): judge.at_route(routes.get(judge.model))
            for reward in self.reward
            if (judge := reward.judge) is not None
        }

    @property
    def critic_model(self) -> CriticModel:
        """The critic of [prompt], with the server of its route.

        Raises:
            BadRecipe: when the recipe has no [prompt].
        """
        if self.prompt is None or self.prompt.critic is None:
            raise BadRecipe(
                "The recipe has no [prompt] section, so there is no prompt to optimize. Add "
                '[prompt] with policy = "…", and [prompt.critic] with model = "…".'
            )
        routes = {route.model: route for route in self.serve.route}
        return self.prompt.critic.at_route(routes.get(self.prompt.critic.model))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The environment variables with keys of other models; agents do not get them."""
        models = [*self.judges.values(), *((self.critic_model,) if self.prompt else ())]
        keys = (model.key for model in models if model.key is not None)
        own = (TINKER_KEY,) if self.train.backend == "tinker" else ()
        return tuple(dict.fromkeys([*self.serve.secrets, *keys, *own]))

    @property
    def digest(self) -> str:
        """Hash of the keys and values, without budgets and independent of formatting."""
        budgets = Train.budgets()
        of_policies: dict[str, Any] = {"train": budgets}
        if not any(policy.served_as for policy in self.policy):
            of_policies["served_as"] = True  # of a recipe that another version has read
        defaults = {"backend": "verl", "tinker": Tinker()}  # older recipes have the same digest
        own = budgets | {n for n, value in defaults.items() if getattr(self.train, n) == value}
        of_train = {"tinker": {"prices"}} | dict.fromkeys(own, True)  # prices change no row
        exclude: dict[str, Any] = {"train": of_train, "policy": {"__all__": of_policies}}
        exclude |= {"watch": True, "deploy": True}
        if self.serve.on == "vllm":
            exclude["serve"] = {"on"}  # the same
        if self.prompt is None:
            exclude["prompt"] = True  # the same
        if self.rollout is not None and self.rollout.sandbox is None:
            exclude["rollout"] = set(SANDBOX_KEYS)  # the same
        content = self.model_dump_json(by_alias=True, exclude=exclude)
        return sha256(content.encode()).hexdigest()[:16]

    @classmethod
    def load(cls, path: Path = DEFAULT) -> Self:
        """Read and check `path`.

        Raises:
            BadRecipe: the file does not exist, is not TOML, or has an invalid key or value.
        """
        try:
            return cls.from_sections(tomllib.loads(path.read_text()), str(path))
        except OSError as error:
            raise BadRecipe(
                f"No recipe at {path}: {error.strerror}. Write one, or name another file."
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadRecipe(f"{path} is not TOML: {error}.") from error

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any], name: str = "The recipe") -> Self:
        """Check a recipe's sections; `name` is what an error calls the recipe.

        Raises:
            BadRecipe: a key or a value is invalid.
        """
        try:
            return cls.model_validate(sections)
        except ValidationError as error:
            raise BadRecipe(f"{name}: {describe_error(cls, error)}") from error
