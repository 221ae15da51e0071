"""Advantage estimators by name: each a function on a frame, with its equation and its paper."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
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

open_face(__name__)
