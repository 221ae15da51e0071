"""Which policies are trained, and on which calls."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from ltrain_instrument.errors import UnknownName
from ltrain_instrument.identity import TrainableMode
from ltrain_transforms import rules, tables
from ltrain_transforms.recipe.section import Section
from ltrain_transforms.recipe.train import RUN_KEYS

SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens"),
    *("min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty"),
)
"""Sampling settings of vLLM's OpenAI-compatible requests that a recipe may set."""

NEUTRAL = {
    "top_p": (1.0,),
    "top_k": (0.0, -1.0),
    "min_p": (0.0,),
    "min_tokens": (0.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
}
"""Settings that change the distribution which tokens are sampled from, so that the trainer cannot
compute their probabilities, with the values that change nothing."""


class Policy(Section):
    """An LLM call belongs to the first policy that selects it; all other calls are environment."""

    name: str = Field(min_length=1)
    """The trained policy; calls that name another policy are not selected."""
    imitates: tuple[str, ...] = ()
    """Other models whose calls it is trained on too, by the names under which a gateway recorded
    them, such as a larger model's for `ltrain sft`; updates by reinforcement drop them."""
    agents: tuple[str, ...] = ()
    """Agents or nodes whose calls are trained; empty: all."""
    nodes: tuple[str, ...] = ()
    """Graph nodes whose calls are trained; empty: all."""
    modes: tuple[TrainableMode, ...] = ()
    """Modes whose calls are trained; empty: all that are read, and `val` only where
    `source.mode` or `--mode` is `val`. No policy is trained on mode `test`."""
    where: str | None = None
    """SQL predicate over the columns of `calls`; other calls are environment."""
    token_source: Literal["gateway", "capture", "rendered"] = "gateway"
    """Which token ids are trained: only those that the gateway recorded, or also those that the
    agent's own process recorded (`ltrain.capture`, agent-lightning) and could forge. rendered:
    calls without ids too, whose texts [the chat template renders](samples.md#rendered-rows)."""
    served_as: dict[str, Annotated[int, Field(ge=0)]] = Field(default={})
    """Names under which other servers serve the policy, with the version of each, such as
    `{ "support-prod" = 3 }`, for calls that are rendered. The policy's name is the version that was
    current at the time, and `NAME@3` version 3."""
    sampling: dict[str, float] = Field(default={"temperature": 1.0})
    """Sampling settings that the gateway sets on each of its calls in mode `train`; those that cut
    or shift the distribution (`top_p`, `top_k`, `min_p`, `min_tokens`, penalties) are refused."""

    rewards: tuple[str, ...] = ()
    """Names of the rewards that its calls are trained by; empty: all."""
    frozen: bool = False
    """Whether its calls are served and recorded, and not trained."""
    model: str | None = None
    """Model directory that becomes version 0 of a new policy, in the recipe's folder; unset:
    that of `--model`."""
    train: dict[str, Any] = Field(default={})
    """Keys of [train] that have other values for this policy; those of the whole run, such as
    `updates`, cannot be among them."""

    @field_validator("sampling")
    @classmethod
    def _known(cls, sampling: dict[str, float]) -> dict[str, float]:
        for name in sampling:
            if name not in SAMPLING:
                raise ValueError(str(UnknownName("sampling setting", name, SAMPLING)))
            if sampling[name] not in NEUTRAL.get(name, (sampling[name],)):
                raise ValueError(
                    f"sampling sets {name} = {sampling[name]:g}. The trainer cannot compute the "
                    "probabilities of tokens that were sampled so, and would drop every row as "
                    f"'filtered'. Remove {name}; temperature, seed and max_tokens may be set."
                )
        return sampling

    @field_validator("train")
    @classmethod
    def _own_keys(cls, train: dict[str, Any]) -> dict[str, Any]:
        for name in train:
            if name in RUN_KEYS:
                raise ValueError(f"`{name}` is a key of the whole run. Set it in [train].")
        return train

    @model_validator(mode="after")
    def _served_names(self) -> Self:
        if self.served_as and self.token_source != "rendered":
            raise ValueError(
                "`served_as` names the versions of calls that are rendered, and token_source is "
                f"'{self.token_source}'. Set token_source = \"rendered\", or remove `served_as`."
            )
        return self

    @property
    def narrows(self) -> tuple[object, ...]:
        """The conditions besides the agent by which calls are selected."""
        return self.nodes, self.modes, self.where

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        if self.where is not None:
            columns = tables.CALLS.schema
            rules.sql.check_predicate(f"Policy '{self.name}', where", self.where, columns)
        return self
