"""Estimators by name: each is a function on a frame, with its equation and its paper.

`ESTIMATORS` turn outcomes into advantages; `STEP_ESTIMATORS` compute advantages of single calls. A
package adds its own under the entry points `ltrain.estimators` and `ltrain.step_estimators`; each
is imported when a recipe names it.
"""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, TypeVar

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.estimators.critic import gae
from ltrain_transforms.estimators.frames import (
    COMPONENT,
    EPSILON,
    MEMBERS,
    SAME,
    STEPS,
    OutcomeEstimator,
    OutcomeSettings,
    StepEstimator,
    StepSettings,
)
from ltrain_transforms.estimators.graph import graph
from ltrain_transforms.estimators.grouped import (
    dr_grpo,
    grpo,
    grpo_passk,
    lightning,
    max_rl,
    opo,
    rloo,
)
from ltrain_transforms.estimators.running import rae, running
from ltrain_transforms.estimators.steps import gigpo, hgpo, turn_level
from ltrain_transforms.estimators.whitened import gdpo, reinforce_pp, reinforce_pp_baseline

ESTIMATORS: dict[str, OutcomeEstimator] = {
    "lightning": lightning,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "opo": opo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "max_rl": max_rl,
    "grpo_passk": grpo_passk,
    "gdpo": gdpo,
    "running": running,
    "rae": rae,
    "gae": gae,
}

Reach = Literal["group", "wave", "time"]

REACH: dict[str, Reach] = {
    **dict.fromkeys(
        ("lightning", "grpo", "dr_grpo", "rloo", "opo", "max_rl", "grpo_passk", "gae"), "group"
    ),
    **dict.fromkeys(("reinforce_pp", "reinforce_pp_baseline", "gdpo"), "wave"),
    **dict.fromkeys(("running", "rae"), "time"),
}
"""Which executions may change each other's advantage: those of a group; those of a wave (the batch
of whitening); or all that are read (running baselines). Estimators of other packages have the reach
`wave`."""

STEP_ESTIMATORS: dict[str, StepEstimator] = {
    "gigpo": gigpo,
    "hgpo": hgpo,
    "turn_level": turn_level,
    "graph": graph,
}

_Function = TypeVar("_Function", OutcomeEstimator, StepEstimator)


def outcome_estimator(name: str) -> OutcomeEstimator:
    """Return the outcome estimator of that name.

    Raises:
        UnknownName: when neither ltrain nor an installed package has it.
    """
    return _look_up(name, "estimator", ESTIMATORS, "ltrain.estimators")


def step_estimator(name: str) -> StepEstimator:
    """Return the step estimator of that name.

    Raises:
        UnknownName: when neither ltrain nor an installed package has it.
    """
    return _look_up(name, "step estimator", STEP_ESTIMATORS, "ltrain.step_estimators")


def _look_up(name: str, kind: str, builtin: Mapping[str, _Function], group: str) -> _Function:
    """Look `name` up in `builtin`, then in the entry points of `group`, which cannot replace it."""
    if name in builtin:
        return builtin[name]
    points: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=group)}
    if name not in points:
        raise UnknownName(kind, name, [*builtin, *points])
    loaded: _Function = points[name].load()
    return loaded


__all__ = [
    "COMPONENT",
    "EPSILON",
    "ESTIMATORS",
    "MEMBERS",
    "REACH",
    "SAME",
    "STEPS",
    "STEP_ESTIMATORS",
    "OutcomeEstimator",
    "OutcomeSettings",
    "Reach",
    "StepEstimator",
    "StepSettings",
    "outcome_estimator",
    "step_estimator",
]
