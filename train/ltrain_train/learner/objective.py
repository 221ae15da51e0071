"""The objective of one update: the loss and the settings of a `step` request.

It travels with each request and, inside the batch, to every rank. So one learner process serves
every objective; the process itself has only its `Job`.
"""

from dataclasses import dataclass, fields
from math import cos, pi
from typing import Any, Self

from pydantic import TypeAdapter

from ltrain_train.learner.samples import Kind
from ltrain_transforms.recipe import Critic, Train, VerlActor


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss, its corrections and the optimizer settings of one update.

    The other fields are keys of the recipe's [train], with their meaning. The weight of
    each token is in the rows, as `loss_weight`.
    """

    kind: Kind = "rl"
    """`rl`: the policy loss with its terms. `sft`: the cross-entropy of the tokens, which needs
    neither advantages nor log-probabilities of a server."""
    loss: str
    clip_ratio_low: float
    clip_ratio_high: float
    entropy_coefficient: float
    kl_coefficient: float
    kl_in: str
    kl_estimator: str
    correction: str
    correction_cap: float
    rejection: str
    rejection_min: float
    rejection_max: float
    learning_rate: float
    gradient_clip: float
    steps_per_wave: int
    drift_outlier: float
    drift_warning: float
    drift_limit: float
    actor: VerlActor
    """verl's further options of the losses: [train.verl.actor]."""
    critic: Critic | None = None
    """The settings of the critic, which computes the advantages; None: the rows have them."""
    trains_policy: bool = True
    """Whether the policy is trained; otherwise only the critic."""

    @property
    def kl_loss(self) -> bool:
        """Whether the loss has the divergence from a reference."""
        return self.kl_coefficient > 0 and self.kl_in == "loss"

    @property
    def critic_rate(self) -> float:
        """The learning rate of the critic."""
        rate = self.critic.learning_rate if self.critic is not None else None
        return self.learning_rate if rate is None else rate

    @classmethod
    def from_train(cls, train: Train, update: int | None = None) -> Self:
        """Return the objective of a recipe's [train].

        Args:
            update: the update's number in its run, from 0, for the schedule of the learning rate;
                None: outside of a run, with the full rate.
        """
        names = {field.name for field in fields(cls)} - {"actor", "kind", "trains_policy"}
        settings = {name: getattr(train, name) for name in names} | {"actor": train.verl.actor}
        if update is not None:
            settings["trains_policy"] = not train.critic or update >= train.critic.warmup_updates
            settings["learning_rate"] = scheduled_rate(train, update)
        return cls(**settings)

    def encode(self) -> dict[str, Any]:
        """Return the objective as an argument of a `step` request."""
        encoded: dict[str, Any] = OBJECTIVES.dump_python(self, mode="json")
        return encoded


def scheduled_rate(train: Train, update: int) -> float:
    """Return the learning rate of the update with that number, from 0, of a run.

    With W warm-up updates, U updates and the share p = (update - W) / (U - W) of the others:

        warm-up    rate x (update + 1) / W
        linear     rate x (1 - p)
        cosine     rate x (1 + cos(pi p)) / 2, without restarts: arXiv 1608.03983, equation 5

    No update has the rate 0.
    """
    warmup = train.warmup_updates
    if update < warmup:
        return train.learning_rate * (update + 1) / warmup
    done = (update - warmup) / max(train.updates - warmup, 1)
    factors = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + cos(pi * done)) / 2}
    return train.learning_rate * factors[train.decay]


OBJECTIVES = TypeAdapter(Objective)
decode_objective = OBJECTIVES.validate_python
"""Return the objective of a `step` request's argument."""
