"""A recipe is data: which executions, agents, rules, credit and filters, from one TOML file.

It is checked on load; its digest is stamped on every dataset, training span and checkpoint.
"""

import tomllib
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ltrain_instrument.errors import UnknownName
from ltrain_transforms import sql
from ltrain_transforms.errors import BadRecipe, BadRule
from ltrain_transforms.estimators import ESTIMATORS

DEFAULT = Path("ltrain.toml")
"""What a command reads when it is given no recipe."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Source(Section):
    run: str | None = None
    """Executions of this run."""
    where: str | None = None
    """SQL over the columns of `otel.spans`."""
    since: str | None = None
    """ISO 8601; the earliest start."""
    until: str | None = None
    """ISO 8601; the latest start."""
    execution: Literal["rollout", "session", "trace"] = "rollout"
    """What counts as one execution."""


class Rollout(Section):
    """Read only where ltrain drives the agent."""

    tasks: str
    """JSONL of tasks, beside the recipe."""
    validation: str | None = None
    """JSONL of held-out tasks."""
    agent: str
    """`module:function`, or a command."""
    reward: str
    """`module:function`: (task, result) -> a number, or numbers by name."""
    per_task: int = Field(default=8, ge=1)
    """Rollouts of a task in a wave."""
    tasks_per_wave: int = Field(default=12, ge=1)
    """Tasks of an update."""
    deadline: float = Field(default=60, gt=0)
    """Seconds an attempt."""
    seed: int = 0
    """Decides which tasks come in which wave."""
    workers: int = Field(default=2, ge=1)
    """Warm worker processes."""
    concurrency: int = Field(default=16, ge=1)
    """Rollouts at a time in one worker."""


class Policy(Section):
    name: str
    """The trained policy."""
    agents: tuple[str, ...] = ()
    """Agents or nodes whose calls are trained; empty: every call of the policy."""
    sampling: dict[str, float] = {"temperature": 1.0}
    """What the gateway imposes in mode `train`."""


class Credited(StrEnum):
    SELF = "self"
    """The call that the rule looked at."""
    REQUESTER = "requester"
    """The LLM call that asked for the tool."""
    PREVIOUS = "previous"
    """The trained call before it."""
    LAST = "last"
    """The last trained call of the execution."""
    ROLLOUT = "rollout"
    """The whole execution."""


class Reward(Section):
    """Either an evaluation by name, or a rule over calls."""

    name: str
    """Its name in tables and reports."""
    evaluation: str | None = None
    """Name of an evaluation; its value is taken."""
    from_: Literal["runner", "agent", "any"] = Field(default="runner", alias="from")
    """Whose word counts."""
    on: Literal["llm", "tool", "retrieval", "embedding", "agent", "node"] | None = None
    """The kind of call a rule looks at."""
    when: str = "true"
    """SQL predicate over the columns of `calls`."""
    value: str | None = None
    """SQL expression over the same columns; a number."""
    let: dict[str, str] = {}
    """Names for JSON inside arguments and results: `rows = "result:$.rows"`."""
    credit_to: Credited = Credited.SELF
    """Which call gets the rule's value."""
    at_least: float = float("-inf")
    """Bound of the sum over an execution, in call order."""
    at_most: float = float("inf")
    """The other bound of that sum."""
    weight: float = 1.0
    """Multiplies what it gives."""

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.evaluation is not None and (self.on or self.value):
            raise BadRule(f"Reward '{self.name}' has an evaluation and a rule; it must be one.")
        if self.evaluation is None and not (self.on and self.value):
            raise BadRule(
                f"Reward '{self.name}' must have `evaluation`, or `on` and `value` of a rule."
            )
        if self.at_least > self.at_most:
            raise BadRule(f"Reward '{self.name}': at_least {self.at_least} > {self.at_most}.")
        if self.value is not None:
            sql.check(self.name, self.when, self.value, self.let)
        return self


class Outcome(Section):
    estimator: str = "grpo"
    """How rewards become advantages within a group."""

    @field_validator("estimator")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in ESTIMATORS:
            raise ValueError(str(UnknownName("estimator", name, ESTIMATORS)))
        return name


class Process(Section):
    returns: Literal["uniform", "reward_to_go", "discounted"] = "reward_to_go"
    """What a call is worth: all call rewards alike, those from it on, or those discounted."""
    baseline: Literal["group_mean", "none"] = "group_mean"
    """Taken off: the group's mean at the same agent's k-th call."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount a call, where returns = 'discounted'."""
    weight: float = 1.0
    """Multiplies the process advantage before it is added to the outcome's."""


class Credit(Section):
    outcome: Outcome = Outcome()
    process: Process = Process()


class FailedCounts(Section):
    reward: float = 0.0
    """The outcome of an agent that failed or ran out of time."""


class Filter(Section):
    failed: FailedCounts | Literal["drop"] = FailedCounts()
    """Agent errors and timeouts: counted with a reward, or dropped."""
    max_tokens: int = Field(default=4096, ge=1)
    """Longer rows are dropped by name."""
    groups: int | None = Field(default=None, ge=1)
    """Train this many groups with the widest outcome."""


class Train(Section):
    loss: str = "vanilla"
    """One of verl's policy losses."""
    learning_rate: float = Field(default=1e-5, gt=0)
    """AdamW's."""
    lora_rank: int = Field(default=16, ge=0)
    """0 trains every weight."""
    lora_alpha: int | None = None
    """Default: twice the rank."""
    clip_ratio_low: float = Field(default=0.2, ge=0)
    """1 less this is the least ratio that counts."""
    clip_ratio_high: float = Field(default=0.2, ge=0)
    """1 plus this is the largest."""
    updates: int = Field(default=10, ge=1)
    """Waves of an online run."""
    steps_per_wave: int = Field(default=1, ge=1)
    """Optimizer steps an update."""
    tokens_per_micro_batch: int = Field(default=768, ge=1)
    """Tokens in memory at a time; changes no result."""
    max_staleness: int = Field(default=4, ge=0)
    """Rows of an older policy version than this are left out."""
    weigh: Literal["rollout", "call", "token"] = "token"
    """What has equal weight in the loss."""
    correction: Literal["bypass", "token_tis"] = "bypass"
    """bypass: the server's log-probabilities are the old ones; token_tis: they are recomputed,
    and each token is weighed by the capped ratio of the two."""
    correction_cap: float = Field(default=2.0, gt=0)
    """The cap of token_tis."""
    dtype: Literal["auto", "bf16", "fp32"] = "auto"
    """What versions are written and served in, and computed in where the processor is fast in it;
    auto: bf16 on such a processor, else fp32."""
    gradient_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    settle: float = Field(default=20.0, ge=0)
    """Seconds to wait for a wave's spans before it is built without those that are missing."""
    validate_every: int = Field(default=0, ge=0)
    """Updates between validations; 0: only before and after."""


class Recipe(Section):
    source: Source = Source()
    rollout: Rollout | None = None
    policy: tuple[Policy, ...] = Field(min_length=1)
    reward: tuple[Reward, ...] = Field(min_length=1)
    credit: Credit = Credit()
    filter: Filter = Filter()
    train: Train = Train()

    @field_validator("reward")
    @classmethod
    def _named_apart(cls, rewards: tuple[Reward, ...]) -> tuple[Reward, ...]:
        names = [reward.name for reward in rewards]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"Two rewards are named '{twice[0]}'; give each its own name.")
        return rewards

    @property
    def digest(self) -> str:
        """Hash of what it says, whatever its spelling."""
        return sha256(self.model_dump_json(by_alias=True).encode()).hexdigest()[:16]

    @classmethod
    def load(cls, path: Path = DEFAULT) -> Self:
        """Read and check `path`.

        Raises:
            BadRecipe: when it is not there, is not TOML, or says what cannot be.
        """
        try:
            return cls.model_validate(tomllib.loads(path.read_text()))
        except OSError as error:
            raise BadRecipe(
                f"No recipe at {path}: {error.strerror}. Write one, or name it."
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadRecipe(f"{path} is not TOML: {error}.") from error
        except ValidationError as error:
            raise BadRecipe(f"{path}: {_sentence(cls, error)}") from error


def _sentence(model: type[BaseModel], error: ValidationError) -> str:
    """Say of the first fault where it is, what was given and what is allowed."""
    fault = error.errors()[0]
    where = ".".join(str(part) for part in fault["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if fault["type"] == "extra_forbidden":
        section = _section(model, fault["loc"][:-1])
        known = [field.alias or name for name, field in section.model_fields.items()]
        return f"{where}: {UnknownName('key', str(fault['loc'][-1]), known)}{more}"
    if fault["type"] == "value_error":  # a sentence of ours, which pydantic puts a label on
        return f"{where}: {fault['msg'].removeprefix('Value error, ')}{more}"
    given = f" Given: {fault['input']!r}." if fault["type"] != "missing" else ""
    return f"{where}: {fault['msg']}.{given}{more}"


def _section(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """Find the section of `model` that `location` points into."""
    sections = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    for part in location:
        if not isinstance(part, str) or part not in sections:
            continue
        inner = sections[part]
        arguments = (inner, *getattr(inner, "__args__", ()))
        found = next(
            (a for a in arguments if isinstance(a, type) and issubclass(a, BaseModel)), None
        )
        if found is None:
            return model
        return _section(found, location[location.index(part) + 1 :])
    return model
