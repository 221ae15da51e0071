"""Verdicts on a candidate, by the goal, the guards, what is missing and the budget."""

import pytest

from ltrain_transforms.deployment_file import Stage
from ltrain_transforms.recipe import Deploy
from ltrain_transforms.trials import ArmTotals, Bounds, Decision, Guard, decide

GUARDS = {"errors": Guard(0.1, sign=-1), "feedback": Guard(0.1)}
BOUNDS = Bounds("reward", max_loss=0.1, guards=GUARDS, budget=3000)


def arm(rate: float, units: int = 2000) -> ArmTotals:
    ones = rate * units
    return ArmTotals(float(units), float(units), ones, float(units), ones, ones)


def metrics(**rates: tuple[float, float]) -> dict[str, tuple[ArmTotals, ArmTotals]]:
    named = {"reward": (0.7, 0.5), "errors": (0.02, 0.02), "feedback": (0.3, 0.3)} | rates
    return {name: (arm(first), arm(second)) for name, (first, second) in named.items()}


def test_a_better_candidate_is_promoted() -> None:
    verdict = decide(metrics(), BOUNDS, 2000)
    assert verdict.decision is Decision.PROMOTE
    assert verdict.reason.startswith("reward is better by 0.1")


@pytest.mark.parametrize(
    ("worse", "decision", "reason"),
    [
        ({"reward": (0.2, 0.5)}, Decision.TAKE_BACK, "reward is worse"),
        ({"errors": (0.4, 0.02)}, Decision.TAKE_BACK, "errors is worse"),
        ({"feedback": (0.0, 0.4)}, Decision.TAKE_BACK, "feedback is worse"),
        ({"errors": (0.11, 0.02)}, Decision.GO_ON, "errors may differ by only -0.1"),
        ({"reward": (0.5, 0.5)}, Decision.GO_ON, "reward may differ by only -0."),
    ],
)
def test_a_worse_candidate_is_not(
    worse: dict[str, tuple[float, float]], decision: Decision, reason: str
) -> None:
    verdict = decide(metrics(**worse), BOUNDS, 2000)
    assert (verdict.decision, verdict.reason[: len(reason)]) == (decision, reason)


@pytest.mark.parametrize("missing", ["reward", "errors", "feedback"])
def test_a_metric_that_never_arrives_promotes_nothing(missing: str) -> None:
    found = metrics()
    del found[missing]
    verdict = decide(found, BOUNDS, 2000)
    assert verdict.decision is Decision.GO_ON
    assert verdict.reason == f"no value of {missing} has arrived"


def test_a_used_up_budget_ends_the_trial() -> None:
    verdict = decide(metrics(reward=(0.5, 0.5)), BOUNDS, 3000)
    assert verdict.decision is Decision.UNDECIDED
    assert verdict.reason.startswith("the budget of 3000 is used up: reward may differ")


@pytest.mark.parametrize(
    ("failed", "units", "decision", "reason"),
    [
        (0.02, 2000, Decision.PROMOTE, "no loss was seen in 2,000 conversations in the shadow"),
        (0.02, 400, Decision.GO_ON, "no loss was seen in 400 conversations in the shadow"),
        (0.4, 400, Decision.TAKE_BACK, "failed calls is worse"),
    ],
)
def test_in_the_shadow_only_calls_are_judged(
    failed: float, units: int, decision: Decision, reason: str
) -> None:
    guards = {"failed calls": 0.1, "units with feedback": 0.1}
    bounds = Bounds.of(Deploy(share=0.1, shadow=500, guards=guards), Stage.SHADOW)
    found = {"failed calls": (failed, 0.02), "units with feedback": (0.0, 0.5)}
    verdict = decide(metrics(**found, reward=(0.0, 0.5)), bounds, units)
    assert (verdict.decision, verdict.reason[: len(reason)]) == (decision, reason)


def test_a_shadow_that_a_person_began_passes_with_the_budget() -> None:
    bounds = Bounds.of(Deploy(share=0.1, budget=700), Stage.SHADOW)
    decisions = [decide(metrics(), bounds, units).decision for units in (699, 700)]
    assert decisions == [Decision.GO_ON, Decision.PROMOTE]


def test_a_gain_that_is_too_small_goes_on() -> None:
    verdict = decide(metrics(), Bounds("reward", min_gain=0.19), 2000)
    assert verdict.decision is Decision.GO_ON
