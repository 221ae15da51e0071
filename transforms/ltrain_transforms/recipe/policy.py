"""Which policies are trained, and on which calls."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.recipe.section import Section
from ltrain_transforms.rules import sql
from ltrain_transforms.tables import CALLS

SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens"),
    *("min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty"),
)
"""Sampling settings of vLLM's OpenAI-compatible requests that a recipe may set."""


class Policy(Section):
    """An LLM call belongs to the first policy that selects it; all other calls are environment."""

    name: str = Field(min_length=1)
    """The trained policy; calls that name another policy are not selected."""
    agents: tuple[str, ...] = ()
    """Agents or nodes whose calls are trained; empty: all."""
    nodes: tuple[str, ...] = ()
    """Graph nodes whose calls are trained; empty: all."""
    modes: tuple[Literal["train", "val", "prod"], ...] = ()
    """Modes whose calls are trained; empty: all that are read."""
    where: str | None = None
    """SQL predicate over the columns of `calls`; other calls are environment."""
    token_source: Literal["gateway", "capture"] = "gateway"
    """Which token ids are trained: only those that the gateway recorded, or also those that the
    agent's own process recorded (`ltrain.capture`, agent-lightning) and could forge."""
    sampling: dict[str, float] = Field(default={"temperature": 1.0})
    """Sampling settings that the gateway sets on every call in mode `train`."""

    @field_validator("sampling")
    @classmethod
    def _known(cls, sampling: dict[str, float]) -> dict[str, float]:
        for name in sampling:
            if name not in SAMPLING:
                raise ValueError(str(UnknownName("sampling setting", name, SAMPLING)))
        return sampling

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        if self.where is not None:
            sql.check_predicate(f"Policy '{self.name}', where", self.where, CALLS.schema)
        return self
