"""Estimators by name: each is a record of its function, what it compares, equation and paper.

`ESTIMATORS` turn outcomes into advantages; `STEP_ESTIMATORS` compute advantages of single calls. A
new one is a function in a module of this folder and a record here; the tables of `docs/credit.md`
are made from the records. A package adds its own under the entry points `ltrain.estimators` and
`ltrain.step_estimators`; each is imported when a recipe names it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, Literal, TypeVar

from ltrain_instrument.errors import UnknownName
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
from ltrain_transforms.estimators.running import gae, rae, running
from ltrain_transforms.estimators.steps import gigpo, hgpo, turn_level
from ltrain_transforms.estimators.whitened import gdpo, reinforce_pp, reinforce_pp_baseline

Reach = Literal["group", "wave", "time"]

Function = TypeVar("Function", OutcomeEstimator, StepEstimator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator(Generic[Function]):
    """An estimator: its function, what it compares, and its row in the documentation."""

    function: Function = field(kw_only=False)
    equation: str = ""
    paper: str = ""
    """Its name and number; the function's docstring has the number, too."""
    use: str = ""
    """The purpose."""
    reach: Reach = "wave"
    """Which executions may change each other's advantage: those of a group; those of a wave (the
    batch of whitening); or all that are read (running baselines). A step estimator compares within
    a group whatever this is."""
    needs_critic: bool = False
    """Whether the trainer's critic computes the advantages."""
    fits_singles: bool = False
    """Whether it compares an execution that is alone in its group, as production traffic is."""
    for_agents: bool = False
    """Whether it keeps a baseline for each agent, so that the peers must be agents."""


ESTIMATORS: dict[str, Estimator[OutcomeEstimator]] = {
    "lightning": Estimator(
        lightning,
        equation="A = (R - mean) / (std + 1e-6), over the transitions of a task",
        paper="Agent Lightning, arXiv 2508.03680, figure 3c",
        use="comparison with Agent Lightning's results: every transition is a sample with its "
        "execution's return, so an execution with more calls has more weight in mean and std",
        reach="group",
    ),
    "grpo": Estimator(
        grpo,
        equation="A = (R - mean) / (std + 1e-6), over the group",
        paper="DeepSeekMath, arXiv 2402.03300",
        use="the default for rollouts of tasks: every task has equal weight",
        reach="group",
    ),
    "dr_grpo": Estimator(
        dr_grpo,
        equation="A = R - mean",
        paper="Dr. GRPO, arXiv 2503.20783",
        use="no bias towards tasks that nearly always fail or succeed; use it with "
        '`train.loss_weighting = "token"`',
        reach="group",
    ),
    "rloo": Estimator(
        rloo,
        equation="A = R - mean of the others",
        paper="RLOO, arXiv 2402.14740",
        use="an unbiased baseline in small groups",
        reach="group",
    ),
    "opo": Estimator(
        opo,
        equation="A = R - sum(l R) / sum(l), l the sampled tokens",
        paper="OPO, arXiv 2505.23585",
        use="rollouts of very different length",
        reach="group",
    ),
    "reinforce_pp": Estimator(
        reinforce_pp,
        equation="A = (R - mean) / sqrt(var + 1e-8), over the batch's sampled tokens",
        paper="REINFORCE++, arXiv 2501.03262",
        use="many tasks with few rollouts each, also with one: the default for production traffic",
        reach="wave",
        fits_singles=True,
    ),
    "reinforce_pp_baseline": Estimator(
        reinforce_pp_baseline,
        equation="A = R - group mean, then whitened as `reinforce_pp`",
        paper="REINFORCE++, arXiv 2501.03262",
        use="the same, where tasks differ in difficulty",
        reach="wave",
    ),
    "max_rl": Estimator(
        max_rl,
        equation="A = (R - mean) / mean, 0 where the mean is not above 0",
        paper="MaxRL, arXiv 2602.02710",
        use="rewards of success or failure: maximises likelihood, hard tasks weigh about 1/p",
        reach="group",
    ),
    "grpo_passk": Estimator(
        grpo_passk,
        equation="A = (R1 - R2) / (std + 1e-6) for the best, 0 for others",
        paper="Pass@k, arXiv 2503.19595",
        use="one good answer in k tries",
        reach="group",
    ),
    "gdpo": Estimator(
        gdpo,
        equation="A = sum of w_k (r_k - mean_k) / (std_k + 1e-6), then whitened as `reinforce_pp`",
        paper="GDPO, arXiv 2601.05242",
        use="several rewards of a whole execution, none of which should dominate; w is the "
        "reward's `weight`",
        reach="wave",
    ),
    "running": Estimator(
        running,
        equation="A = R - mean of the track's earlier R",
        paper="REINFORCE with a baseline, Williams 1992",
        use="streams without groups: a track is a task, else its domain, in a run and mode; the "
        "order is that of the ends",
        reach="time",
        fits_singles=True,
    ),
    "rae": Estimator(
        rae,
        equation="A = R - b, then b = d b + (1 - d) R, b from 0, d = `decay`",
        paper="SPIRAL, arXiv 2506.24119",
        use='self-play and roles: one baseline for each agent (`peers = "agent"`)',
        reach="time",
        fits_singles=True,
        for_agents=True,
    ),
    "gae": Estimator(
        gae,
        equation="A = sum of (gamma lam)^k d_(t+k), d_t = r_t + gamma V_(t+1) - V_t, over the "
        "sampled tokens, V of the learner's critic",
        paper="GAE, arXiv 1506.02438",
        use="PPO with a critic: needs no peers, and values each turn of long rollouts",
        reach="group",
        needs_critic=True,
    ),
}

STEP_ESTIMATORS: dict[str, Estimator[StepEstimator]] = {
    "gigpo": Estimator(
        gigpo,
        equation="A = (G - mean) / F, over steps in the same state",
        paper="GiGPO, arXiv 2505.10978",
        use="states that recur across rollouts",
    ),
    "hgpo": Estimator(
        hgpo,
        equation="A = sum of w_k A_k, w_k ~ (k + 1)^power, A_k over steps with the same last "
        "k = 0..history states too",
        paper="HGPO, arXiv 2602.22817",
        use="states whose meaning depends on the past; a k without peers has no weight",
    ),
    "turn_level": Estimator(
        turn_level,
        equation="A = (r - mean) / F, over the k-th turns, r of the turn itself",
        paper="MT-GRPO, arXiv 2505.11821",
        use="rules that judge each turn; no state needed",
    ),
    "graph": Estimator(
        graph,
        equation="A = r + gamma V(s') - V(s), V by Bellman sweeps over the group's states",
        paper="SALT, arXiv 2510.20022; GRAFT, arXiv 2609.28963",
        use="groups whose paths cross: what others did after the same state counts",
    ),
}


def outcome_estimator(name: str) -> Estimator[OutcomeEstimator]:
    """Return the outcome estimator of that name; of another package, it has the reach `wave`.

    Raises:
        UnknownName: when neither ltrain nor an installed package has it.
    """
    return _look_up(name, "estimator", ESTIMATORS, "ltrain.estimators")


def step_estimator(name: str) -> Estimator[StepEstimator]:
    """Return the step estimator of that name.

    Raises:
        UnknownName: when neither ltrain nor an installed package has it.
    """
    return _look_up(name, "step estimator", STEP_ESTIMATORS, "ltrain.step_estimators")


def _look_up(
    name: str, kind: str, builtin: Mapping[str, Estimator[Function]], group: str
) -> Estimator[Function]:
    """Look `name` up in `builtin`, then in the entry points of `group`, which cannot replace it."""
    if name in builtin:
        return builtin[name]
    points: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=group)}
    if name not in points:
        raise UnknownName(kind, name, [*builtin, *points])
    function: Function = points[name].load()
    return Estimator(function)


__all__ = [
    "COMPONENT",
    "EPSILON",
    "ESTIMATORS",
    "MEMBERS",
    "SAME",
    "STEPS",
    "STEP_ESTIMATORS",
    "Estimator",
    "OutcomeEstimator",
    "OutcomeSettings",
    "Reach",
    "StepEstimator",
    "StepSettings",
    "outcome_estimator",
    "step_estimator",
]
