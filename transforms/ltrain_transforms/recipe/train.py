"""How a policy is trained on the rows."""

from typing import Literal

from pydantic import Field

from ltrain_transforms.recipe.section import Section


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
    loss_weighting: Literal["rollout", "call", "token"] = "token"
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
    span_timeout: float = Field(default=20.0, ge=0)
    """Seconds to wait for a wave's spans before it is built without those that are missing."""
    validate_every: int = Field(default=0, ge=0)
    """Updates between validations; 0: only before and after."""
