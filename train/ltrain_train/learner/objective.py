"""The objective of one update: what a `step` request trains its rows for.

It travels with each request and, inside the batch, to every rank. So one learner process serves
every objective; the process itself has only its `Job`.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from pydantic import TypeAdapter

from ltrain_transforms.recipe import Train


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss, its corrections and the optimizer settings of one update.

    The fields are keys of the recipe's [train], with their meaning. How much each token counts is
    no part of it: the rows have `loss_weight`.
    """

    loss: str
    clip_ratio_low: float
    clip_ratio_high: float
    correction: str
    correction_cap: float
    learning_rate: float
    gradient_clip: float
    steps_per_wave: int
    drift_outlier: float
    drift_warning: float
    drift_limit: float

    @classmethod
    def from_train(cls, train: Train) -> Self:
        """Return the objective of a recipe's [train]."""
        return cls(**{field.name: getattr(train, field.name) for field in fields(cls)})

    def encode(self) -> dict[str, Any]:
        """Return the objective as an argument of a `step` request."""
        return asdict(self)


decode_objective = TypeAdapter(Objective).validate_python
"""Return the objective of a `step` request's argument."""
