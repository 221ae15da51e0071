"""The recipe: one TOML file with executions, agents, rules, credit and filters.

It is checked on load. Every dataset, training span and checkpoint has its digest, which leaves out
budgets.
"""

import tomllib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from ltrain_instrument.identity import SourceMode
from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe.credit import DEFAULT_ESTIMATOR, PRODUCTION_ESTIMATOR, Credit
from ltrain_transforms.recipe.fault import describe_error
from ltrain_transforms.recipe.judge import Judge
from ltrain_transforms.recipe.policy import Policy
from ltrain_transforms.recipe.prompt import Critic, PromptSearch
from ltrain_transforms.recipe.reward import Reward
from ltrain_transforms.recipe.rollout import Rollout
from ltrain_transforms.recipe.section import Section, first_duplicate
from ltrain_transforms.recipe.selection import Filter, Source
from ltrain_transforms.recipe.serve import Serve
from ltrain_transforms.recipe.service import Service
from ltrain_transforms.recipe.train import Train

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
    serve: Serve = Serve()
    prompt: PromptSearch | None = None

    @field_validator("policy")
    @classmethod
    def _unique_policies(cls, policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
        if name := first_duplicate(policy.name for policy in policies):
            raise ValueError(f"Two policies are named '{name}'. Merge both into one [[policy]].")
        return policies

    @field_validator("reward")
    @classmethod
    def _unique_rewards(cls, rewards: tuple[Reward, ...]) -> tuple[Reward, ...]:
        if name := first_duplicate(reward.name for reward in rewards):
            raise ValueError(f"Two rewards are named '{name}'. Give each its own name.")
        return rewards

    @field_validator("service")
    @classmethod
    def _unique_services(cls, services: tuple[Service, ...]) -> tuple[Service, ...]:
        if name := first_duplicate(service.name for service in services):
            raise ValueError(
                f"Two services are named '{name}'. Set count = 2 for two instances of a "
                "service, or rename one."
            )
        return services

    @model_validator(mode="after")
    def _scored_results(self) -> Self:
        if self.rollout is None:
            return self
        if self.rollout.reward is None and not self.judges:
            raise ValueError(
                "[rollout] has no `reward`. Name a function, a command or a URL, or add a "
                '[[reward]] with use = "judge".'
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
        if self.critic.url is None:
            raise ValueError(
                f"The critic of [prompt] has the model '{self.critic.model}', which has no server. "
                f'Add [[serve.route]] with model = "{self.critic.model}" and its url, or set url '
                "in [prompt.critic]."
            )
        if self.rollout is None or self.rollout.validation is None:
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
    def critic(self) -> Critic:
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
        models = [*self.judges.values(), *((self.critic,) if self.prompt else ())]
        keys = (model.key for model in models if model.key is not None)
        return tuple(dict.fromkeys([*self.serve.secrets, *keys]))

    @property
    def digest(self) -> str:
        """Hash of the keys and values, without budgets and independent of formatting."""
        without: dict[str, Any] = {"train": Train.budgets()}
        if self.prompt is None:
            without["prompt"] = True  # of a recipe that another version has read
        content = self.model_dump_json(by_alias=True, exclude=without)
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
