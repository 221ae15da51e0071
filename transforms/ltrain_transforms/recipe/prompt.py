"""How `ltrain apo` optimizes a prompt."""

from typing import Self

from pydantic import Field, model_validator

from ltrain_transforms.recipe.judge import UpstreamModel
from ltrain_transforms.recipe.section import Section


class CriticModel(UpstreamModel):
    """The model that criticises prompts and edits them; its calls are traced, never trained."""

    timeout: float = Field(default=120.0, gt=0)
    """Seconds for one answer, retries included."""


class PromptSearch(Section):
    """Read by `ltrain apo` only."""

    policy: str = Field(min_length=1)
    """The policy whose versions are prompts; agents read it with `ltrain.prompt`."""
    critic: CriticModel | None = None
    """The critic model; required."""
    rounds: int = Field(default=3, ge=1)
    """Rounds of critique, edits and selection."""
    beam_width: int = Field(default=2, ge=1)
    """Prompts that a round keeps."""
    minibatch: int = Field(default=8, ge=1)
    """Training tasks that each prompt of the beam performs before it is criticised."""
    samples: int = Field(default=1, ge=1)
    """Rollouts of each training task."""
    examples: int = Field(default=4, ge=1)
    """Rollouts of the minibatch that a critique is about: those with the lowest scores."""
    gradients: int = Field(default=2, ge=1)
    """Critiques of each prompt of the beam."""
    edits: int = Field(default=1, ge=1)
    """New prompts for each critique."""
    paraphrases: int = Field(default=1, ge=0)
    """Paraphrases of each new prompt."""
    selection_budget: int = Field(default=64, ge=1)
    """Tasks that all candidates of a round perform together to be selected."""

    @model_validator(mode="after")
    def _criticised(self) -> Self:
        if self.critic is None:
            raise ValueError(
                f"[prompt] optimizes the prompts of '{self.policy}' and has no critic. Add "
                '[prompt.critic] with model = "…": the model of a [[serve.route]], or with url '
                "the server's name of it."
            )
        return self
