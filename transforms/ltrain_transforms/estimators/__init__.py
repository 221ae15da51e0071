"""Advantage estimators by name: each a function on a frame, with its equation and its paper."""

from ltrain_transforms.estimators.frames import (
    COMPONENT,
    MEMBERS,
    SAME,
    STEPS,
    OutcomeSettings,
    StepSettings,
)
from ltrain_transforms.estimators.registry import (
    ESTIMATORS,
    STEP_ESTIMATORS,
    Estimator,
    Reach,
    outcome_estimator,
    step_estimator,
)

__all__ = [
    "COMPONENT",
    "ESTIMATORS",
    "MEMBERS",
    "SAME",
    "STEPS",
    "STEP_ESTIMATORS",
    "Estimator",
    "OutcomeSettings",
    "Reach",
    "StepSettings",
    "outcome_estimator",
    "step_estimator",
]
