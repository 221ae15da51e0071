"""The policy of the fake server of the Tinker API: a table of logits by the last token."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]
Tensors = dict[str, NDArray[Any]]


class Refused(Exception):
    """A request that the server answers with a status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass
class Adapter:
    """A training run: the adapter and the state of its Adam."""

    rank: int
    table: Table
    gradient: Table = field(init=False)
    rows: int = 0
    """Rows whose gradient is accumulated."""
    moments: tuple[Table, Table] = field(init=False)
    steps: int = 0
    is_new: bool = True
    """Whether it has had no request; only then weights can be loaded."""

    def __post_init__(self) -> None:
        self.gradient = np.zeros_like(self.table)
        self.moments = (np.zeros_like(self.table), np.zeros_like(self.table))

    def update(self, options: dict[str, float], *, sums: bool, clips: bool) -> dict[str, float]:
        gradient = self.gradient if sums else self.gradient / max(self.rows, 1)
        norm = float(np.sqrt((gradient**2).sum()))
        limit = options["grad_clip_norm"] if clips else 0.0
        if 0 < limit < norm:
            gradient = gradient * limit / norm
        beta1, beta2 = options["beta1"], options["beta2"]
        self.steps += 1
        first = beta1 * self.moments[0] + (1 - beta1) * gradient
        second = beta2 * self.moments[1] + (1 - beta2) * gradient**2
        self.moments = (first, second)
        scale = np.sqrt(second / (1 - beta2**self.steps)) + options["eps"]
        decay = options["weight_decay"] * self.table
        step = first / (1 - beta1**self.steps) / scale
        self.table = self.table - options["learning_rate"] * (step + decay)
        self.gradient, self.rows = np.zeros_like(gradient), 0
        return {"skyrl.ai/grad_norm": norm}


def token_loss(
    name: str, log_probs: Table, row: Tensors, options: dict[str, float]
) -> tuple[Table, Table]:
    """Return the loss of each token, and its derivative by the token's log-probability."""
    if name == "cross_entropy":
        return -log_probs, -np.ones_like(log_probs)
    advantages = row["advantages"].astype(np.float64)
    ratio = np.exp(log_probs - row["logprobs"])
    low, high = options.get("clip_low_threshold", 0.8), options.get("clip_high_threshold", 1.2)
    clipped = ratio.clip(low, high)
    if name == "importance_sampling":
        return -ratio * advantages, -ratio * advantages
    if name == "ppo":
        is_free = ratio * advantages <= clipped * advantages
        return -np.minimum(ratio * advantages, clipped * advantages), -ratio * advantages * is_free
    if name == "cispo":
        return -clipped * log_probs * advantages, -clipped * advantages
    raise Refused(422, f"Unknown loss {name}")
