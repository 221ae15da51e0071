"""The verdict on a trial: the candidate is promoted, taken back, or goes on.

* The goal decides a promotion: its lower bound exceeds `min_gain`, and the lower bound of no guard
  is below `-max_loss`. All of these must hold, so that no correction is needed.
* Any of the goal and the guards takes a candidate back: an upper bound below `-max_loss`. One of k
  is enough, so each has the level alpha / k (Bonferroni).
* In the shadow nobody rates the candidate's answers: only the guards on calls take it back, and it
  has passed once it has answered enough units.
* Executions whose feedback may still arrive are not compared. Whether feedback arrived at all is a
  guard of its own: a version that makes users silent must not win.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from ltrain_instrument.quantity import quantity
from ltrain_transforms.deployment_file import Stage
from ltrain_transforms.recipe import Deploy
from ltrain_transforms.trials.confidence import HORIZON, ArmTotals, Difference, compare
from ltrain_transforms.trials.stored import FAILED_CALLS, OUTPUT_TOKENS, SECONDS, Metric

Arms = tuple[ArmTotals, ArmTotals]
"""The candidate, and the current version."""
SIGNS = {FAILED_CALLS: -1, SECONDS: -1, OUTPUT_TOKENS: -1}
"""Metrics of which less is better."""


class Decision(StrEnum):
    """The consequence of a trial so far."""

    PROMOTE = "promote"
    TAKE_BACK = "take back"
    GO_ON = "go on"
    UNDECIDED = "undecided"
    """The budget is used up: the candidate is retired."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A metric that may not get worse."""

    max_loss: float
    """By how much it may be worse."""
    sign: int = 1
    """1: more is better; -1: less is better, such as errors and seconds."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The rule of a trial."""

    goal: str
    """The metric that decides a promotion."""
    sign: int = 1
    """1: more of the goal is better; -1: less is."""
    min_gain: float = 0.0
    """The gain of the goal that a promotion needs, at least."""
    max_loss: float = 0.0
    """The loss of the goal at which the candidate is taken back."""
    guards: Mapping[str, Guard] = field(default_factory=dict)
    """Other metrics."""
    alpha: float = 0.05
    """The probability of a wrong promotion, and that of a wrong end."""
    budget: int = 10_000
    """Units that the candidate may answer, at most."""
    horizon: int = HORIZON
    shadow: int = 0
    """Units in the shadow with which the candidate has passed it; 0: its answers are seen."""

    @classmethod
    def of(cls, options: Deploy, stage: Stage = Stage.CANARY) -> Self:
        """Return the rule of a recipe for a stage."""
        guards = {
            name: Guard(loss, SIGNS.get(name, 1))
            for name, loss in options.guards.items()
            if name != options.goal
        }
        return cls(
            goal=options.goal,
            sign=SIGNS.get(options.goal, 1),
            min_gain=options.min_gain,
            max_loss=options.max_loss,
            guards=guards,
            alpha=options.alpha,
            budget=options.budget,
            shadow=(options.shadow or options.budget) if stage is Stage.SHADOW else 0,
        )

    @property
    def names(self) -> list[str]:
        """The metrics that decide: the goal and the guards; in the shadow, those of calls."""
        names = [self.goal, *self.guards]
        return [each for each in names if each in SIGNS] if self.shadow else names

    def guard(self, metric: str) -> Guard:
        """Return the rule of a metric."""
        if metric == self.goal:
            return Guard(self.max_loss, self.sign)
        return self.guards[metric]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision, and the sentence that explains it."""

    decision: Decision
    reason: str


def judge(metrics: Sequence[Metric], bounds: Bounds) -> Verdict:
    """Return the verdict on the metrics of a trial."""
    arrived = {
        each.name: (each.candidate, each.current)
        for each in metrics
        if each.candidate.values and each.current.values
    }
    units = max((each.candidate.units for each in metrics), default=0)
    return decide(arrived, bounds, int(units))


def decide(metrics: Mapping[str, Arms], bounds: Bounds, units: int) -> Verdict:
    """Return the verdict on the metrics so far.

    Args:
        metrics: the arms of the goal and of the guards; one that is absent has not arrived yet.
        units: the units that the candidate has answered.
    """
    names = bounds.names
    present = [each for each in names if each in metrics]
    for name in present:
        found = _difference(metrics[name], bounds, name, bounds.alpha / len(names))
        allowed = -bounds.guard(name).max_loss
        if found.upper < allowed:
            return Verdict(
                Decision.TAKE_BACK,
                f"{name} is worse: the difference is below {found.upper:.4g}, allowed is "
                f"{allowed:.4g}",
            )
    if bounds.shadow:
        passed = units >= bounds.shadow
        reason = f"no loss was seen in {quantity(units, 'conversation')} in the shadow"
        return Verdict(Decision.PROMOTE if passed else Decision.GO_ON, reason)
    missing = [each for each in names if each not in metrics]
    worst = "" if missing else _obstacle(metrics, bounds, names)
    if not missing and not worst:
        found = _difference(metrics[bounds.goal], bounds, bounds.goal, bounds.alpha)
        reason = f"{bounds.goal} is better by {found.lower:.4g} at least"
        return Verdict(Decision.PROMOTE, reason)
    why = f"no value of {', '.join(missing)} has arrived" if missing else worst
    if units >= bounds.budget:
        return Verdict(Decision.UNDECIDED, f"the budget of {bounds.budget} is used up: {why}")
    return Verdict(Decision.GO_ON, why)


def _obstacle(metrics: Mapping[str, Arms], bounds: Bounds, names: list[str]) -> str:
    """Return why the candidate is not promoted; '' if nothing keeps it."""
    for name in names:
        found = _difference(metrics[name], bounds, name, bounds.alpha)
        is_goal = name == bounds.goal
        needed = bounds.min_gain if is_goal else -bounds.guard(name).max_loss
        if not found.lower > needed:
            return f"{name} may differ by only {found.lower:.4g}; needed is more than {needed:.4g}"
    return ""


def _difference(arms: Arms, bounds: Bounds, name: str, alpha: float) -> Difference:
    found = compare(*arms, alpha, bounds.horizon)
    if bounds.guard(name).sign > 0:
        return found
    return Difference(-found.mean, -found.upper, -found.lower)
