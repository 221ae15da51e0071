"""Which policies are trained, and on whose calls."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from ltrain_instrument.errors import UnknownName
from ltrain_transforms import sql
from ltrain_transforms.recipe.section import Section
from ltrain_transforms.tables import CALLS

SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens"),
    *("min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty"),
)
"""What may be imposed on a call: numbers that vLLM's OpenAI-compatible requests know."""


class Policy(Section):
    """An LLM call belongs to the first policy that selects it; all other calls are environment."""

    name: str = Field(min_length=1)
    """The trained policy; calls that name another are not its own."""
    agents: tuple[str, ...] = ()
    """Agents or nodes whose calls are trained; empty: every call of the policy."""
    nodes: tuple[str, ...] = ()
    """Graph nodes whose calls are trained; empty: every node."""
    modes: tuple[Literal["train", "val", "prod"], ...] = ()
    """Modes whose calls are trained; empty: whatever was read."""
    where: str | None = None
    """SQL predicate over the columns of `calls`; what it does not hold for is environment."""
    token_source: Literal["gateway", "capture"] = "gateway"
    """Whose token ids are trained: only those that the gateway recorded, or also those that the
    agent's own process did (`ltrain.capture`, agent-lightning), which may make them up."""
    sampling: dict[str, float] = Field(default={"temperature": 1.0})
    """What the gateway imposes in mode `train`."""

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
