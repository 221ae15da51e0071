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
    REACH,
    STEP_ESTIMATORS,
    Reach,
    outcome_estimator,
    step_estimator,
)

__all__ = [
    "COMPONENT",
    "ESTIMATORS",
    "MEMBERS",
    "REACH",
    "SAME",
    "STEPS",
    "STEP_ESTIMATORS",
    "OutcomeSettings",
    "Reach",
    "StepSettings",
    "outcome_estimator",
    "step_estimator",
]
