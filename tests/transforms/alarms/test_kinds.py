"""Each alarm on literal figures: where it fires, and the runs on which it must be silent."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.alarms import ALARMS, WaveFigures, alarms_by_wave, check_names, find_alarms

FARMED = [0.2, 0.2, 0.3, 0.7, 1.1, 2.2, 3.1, 3.6, 3.7, 3.8, 3.9, 4.0, 4.0]
OUTCOME = [0.05, 0.04, 0.1, 0.25, 0.32, 0.27, 0.11, 0.06, 0.09, 0.06, 0.0, 0.01, 0.01]
FLOOR = [0.0] * 6


def run_of(outcomes: Sequence[float | None], **columns: Sequence[Any]) -> list[WaveFigures]:
    """Return a row for each outcome, with the values of each other column in the same order."""
    return [
        WaveFigures(
            wave=number,
            outcome=outcome,
            lowest=0.0,
            best=1.0,
            **{name: values[number] for name, values in columns.items()},
        )
        for number, outcome in enumerate(outcomes)
    ]


def rules(values: Sequence[float]) -> list[dict[str, float]]:
    return [{"a": value} for value in values]


def fired(waves: Sequence[WaveFigures]) -> dict[int, list[str]]:
    return {wave: [one.name for one in found] for wave, found in alarms_by_wave(waves).items()}


def test_a_farmed_rule_is_named_with_its_waves_and_means() -> None:
    waves = run_of(OUTCOME, rules=[{"page-read": value} for value in FARMED])
    found = alarms_by_wave(waves)
    assert list(found) == [7, 8, 9, 10, 11]
    [alarm] = found[8]
    assert (alarm.key, alarm.since) == (("divergence", "page-read"), 3)
    assert alarm.message == (
        "wave 8: `page-read` rose in every wave since 3 (mean 0.70 to 3.70) while the outcome did "
        "not (mean 0.28 to 0.09): the policy may farm the rule; see docs/alarms.md"
    )


def test_an_evaluation_without_a_reward_may_be_farmed_too() -> None:
    rising = [{"reads": float(number)} for number in range(6)]
    [alarm] = find_alarms(run_of(FLOOR, others=rising))
    assert alarm.key == ("divergence", "reads")
    assert "the policy may farm what it measures" in alarm.message


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]),  # both rise
        ([0.0, 0.1, 0.2, 0.3, 0.3, 0.5], FLOOR),  # it does not rise in one wave
        ([0.0, 0.1, 0.2, 0.3, 0.4], [0.0] * 5),  # too few waves
        ([1e-9 * wave for wave in range(6)], FLOOR),  # a potential's rounding
        ([0.5, 0.4, 0.3, 0.2, 0.1, 0.0], [0.5, 0.4, 0.3, 0.2, 0.1, 0.0]),  # both fall
        ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], [1.0, 1.0, 1.0, 1.0, 0.99, 1.0]),  # solved
        ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], [0.0, 0.0, 0.0, 0.0, 0.0, None]),  # not judged
    ],
)
def test_other_rules_do_not_diverge(values: list[float], outcome: list[float | None]) -> None:
    assert fired(run_of(outcome, rules=rules(values))) == {}


def test_waves_without_the_rule_have_0_and_numbers_may_have_gaps() -> None:
    waves = run_of(FLOOR, rules=[{}, *rules([0.1, 0.2, 0.3, 0.4, 0.5])])
    [alarm] = find_alarms([replace(wave, wave=2 * wave.wave + 2) for wave in waves])
    assert (alarm.wave, alarm.since) == (12, 2)
    assert "(mean 0.00 to 0.50)" in alarm.message


def test_several_rules_are_named_in_order() -> None:
    both = [{"b": float(wave), "a": wave - 0.6} for wave in range(6)]
    assert [one.subject for one in find_alarms(run_of(FLOOR, rules=both))] == ["a", "b"]


def share_of(value: float, share: float, outcomes: int = 48, **more: float) -> WaveFigures:
    """Return a wave most of whose rollouts have one outcome."""
    wave = WaveFigures(
        wave=3, lowest=0.0, best=1.0, outcomes=outcomes, commonest=value, commonest_share=share
    )
    return replace(wave, **more)  # type: ignore[arg-type]


def test_a_farmed_partial_value_is_named_with_its_count() -> None:
    [alarm] = find_alarms([share_of(0.2, 46 / 48)])
    assert (alarm.key, alarm.since) == (("one_score", "0.2"), None)
    assert alarm.message == (
        "wave 3: 46 of 48 rollouts have the outcome 0.2, and the best is 1: the policy may farm a "
        "partial reward"
    )


@pytest.mark.parametrize(
    "wave",
    [
        share_of(0.2, 1.0, lowest=0.2, best=0.2),  # no rollout of the run has another outcome
        share_of(0.2, 1.0, best=0.2),  # the run has no better outcome yet
        share_of(20.0, 0.95, best=100.0),  # another scale
        share_of(-1.0, 0.95, lowest=-2.0),
        share_of(1.0, 0.95, best=1.0, full_outcome=3.0),  # one of three evaluations
        share_of(0.2, 0.9, outcomes=16),  # the thresholds
    ],
)
def test_one_outcome_below_the_best_is_an_alarm(wave: WaveFigures) -> None:
    assert [alarm.name for alarm in find_alarms([wave])] == ["one_score"]


@pytest.mark.parametrize(
    "wave",
    [
        share_of(0.0, 0.95),  # a hard task
        share_of(1.0, 0.95),  # a task that is solved
        share_of(0.0, 1.0, best=0.0),
        share_of(1.0, 1.0, lowest=1.0),
        share_of(0.0, 0.5),  # half of each
        share_of(0.1, 0.95, lowest=0.1),  # what failures have
        share_of(0.0, 0.95, lowest=-1.0, best=0.0),  # a penalty that is avoided
        share_of(3.0, 0.95, best=3.0, full_outcome=3.0),  # by weights
        share_of(0.2, 0.89),
        share_of(0.2, 1.0, outcomes=15),  # a small wave
    ],
)
def test_other_outcomes_in_common_are_no_alarm(wave: WaveFigures) -> None:
    assert find_alarms([wave]) == []


def test_the_best_outcome_of_an_earlier_wave_counts() -> None:
    before = WaveFigures(wave=0, lowest=0.0, best=5.0)
    assert [one.name for one in find_alarms([before, share_of(2.0, 0.95, best=2.0)])] == [
        "one_score"
    ]


def test_six_waves_of_groups_without_spread() -> None:
    waves = run_of([0.1, 0.1, 0.0, 0.1, 0.0, 0.1], without_spread=[0.7, 0.8, 1.0, 0.7, 0.9, 0.61])
    [alarm] = find_alarms(waves)
    assert alarm.key == ("no_spread", "")
    assert alarm.message.startswith("wave 5: 61% to 100% of the groups of each wave since 0 have")
    assert "(outcome 0.07)" in alarm.message


@pytest.mark.parametrize(
    ("outcomes", "shares"),
    [
        (FLOOR, [0.7, 0.8, 1.0, 0.7, 0.6, 0.7]),  # one wave has enough
        (FLOOR[:5], [1.0] * 5),  # too few waves
        (FLOOR, [1.0, 1.0, None, 1.0, 1.0, 1.0]),  # one wave is not measured
        ([1.0] * 6, [1.0] * 6),  # solved
        ([0.85] * 6, [0.9] * 6),  # nearly solved
        ([0.0, 0.0, 0.1, 0.1, 0.2, 0.2], [0.9] * 6),  # it learns nevertheless
        ([None] * 6, [1.0] * 6),  # without an outcome nobody knows
    ],
)
def test_groups_without_spread_are_no_alarm(
    outcomes: list[float | None], shares: list[float | None]
) -> None:
    assert fired(run_of(outcomes, without_spread=shares)) == {}


def test_a_run_that_had_the_best_outcome_from_its_start_is_solved() -> None:
    solved = [replace(wave, lowest=1.0) for wave in run_of([1.0] * 6, without_spread=[1.0] * 6)]
    assert fired(solved) == {}
    floor = [replace(wave, best=0.0) for wave in run_of(FLOOR, without_spread=[1.0] * 6)]
    assert fired(floor) == {5: ["no_spread"]}


def test_few_distinct_answers() -> None:
    shares = [0.9, 0.9, 0.9, 0.19, 0.1, 0.05]
    [alarm] = find_alarms(run_of([0.1, 0.1, 0.1, 0.0, 0.0, 0.0], distinct_answers=shares))
    assert alarm.key == ("few_answers", "")
    assert "since 3 the distinct answers are 19% of the rollouts or fewer (90% in" in alarm.message


@pytest.mark.parametrize(
    ("outcomes", "shares"),
    [
        ([0.1, 0.1, 0.1, 0.9, 0.9, 0.9], [0.9, 0.9, 0.9, 0.1, 0.1, 0.1]),  # it found the answers
        ([0.1, 0.1, 0.1, 0.2, 0.2, 0.2], [0.9, 0.9, 0.9, 0.1, 0.1, 0.1]),  # it learns
        ([1.0] * 6, [0.9, 0.9, 0.9, 0.1, 0.1, 0.1]),  # solved
        (FLOOR, [0.06] * 6),  # the task has few answers
        (FLOOR, [0.9, 0.9, 0.9, 0.1, 0.2, 0.1]),  # one wave is above
        (FLOOR, [0.9, 0.9, 0.9, 0.1, None, 0.1]),  # no results were recorded
        (FLOOR[:5], [0.9, 0.9, 0.1, 0.1, 0.1]),  # too few waves
    ],
)
def test_other_answers_are_no_alarm(outcomes: list[float], shares: list[float | None]) -> None:
    assert fired(run_of(outcomes, distinct_answers=shares)) == {}


def test_a_drift_of_the_length_in_both_directions() -> None:
    outcomes = [0.3, 0.3, 0.3, 0.3, 0.2, 0.3]
    [longer] = find_alarms(run_of(outcomes, response_tokens=[10, 10, 10, 21, 30, 25]))
    assert longer.key == ("length_drift", "longer")
    assert "since 3 a rollout has 25.3 generated tokens, more than twice the 10.0" in longer.message
    [shorter] = find_alarms(run_of(outcomes, response_tokens=[10, 10, 10, 4, 4.9, 1]))
    assert shorter.key == ("length_drift", "shorter")
    assert "less than half of the 10.0 of the first waves" in shorter.message


def test_a_length_that_changes_after_the_outcome_has_fallen_from_its_best() -> None:
    outcomes = [0.1, 0.1, 0.1, 0.5, 0.9, 0.9, 0.9, 0.2, 0.3, 0.3]
    lengths = [10, 10, 10, 12, 12, 12, 12, 40, 40, 40]
    assert fired(run_of(outcomes, response_tokens=lengths)) == {9: ["length_drift"]}


@pytest.mark.parametrize(
    ("outcomes", "lengths"),
    [
        ([0.1, 0.1, 0.1, 0.5, 0.5, 0.5], [10, 10, 10, 30, 30, 30]),  # it learns
        ([1.0] * 6, [10, 10, 10, 30, 30, 30]),  # solved
        (FLOOR, [10, 10, 10, 30, 20, 30]),  # exactly twice in one wave
        (FLOOR, [0, 0, 0, 30, 30, 30]),  # no length to compare with
        (FLOOR, [10, None, 10, 30, 30, 30]),
        (FLOOR[:5], [10, 10, 30, 30, 30]),  # too few waves
        ([None, *FLOOR[:5]], [10, 10, 10, 30, 30, 30]),  # one wave is not judged
    ],
)
def test_other_lengths_are_no_alarm(
    outcomes: list[float | None], lengths: list[float | None]
) -> None:
    assert fired(run_of(outcomes, response_tokens=lengths)) == {}


def test_a_tool_that_falls_silent() -> None:
    uses = [{"search": 0.5, "add": 1.0}] * 3 + [{"add": 1.0}] * 3
    [alarm] = find_alarms(run_of(FLOOR, tools=uses))
    assert alarm.key == ("silent_tool", "search")
    assert "no rollout has called the tool `search` since 3 (0.50 calls in a" in alarm.message


@pytest.mark.parametrize(
    ("outcomes", "uses"),
    [
        ([0.1, 0.1, 0.1, 0.6, 0.6, 0.6], [0.5, 0.5, 0.5, 0, 0, 0]),  # it learnt to do without
        (FLOOR, [0.5, 0.5, 0.5, 0, 0, 0.01]),  # one call
        (FLOOR, [0.5, 0.01, 0.5, 0, 0, 0]),  # it was hardly in use
        (FLOOR[:5], [0.5, 0.5, 0, 0, 0]),  # too few waves
    ],
)
def test_other_tools_are_no_alarm(outcomes: list[float], uses: list[float]) -> None:
    assert fired(run_of(outcomes, tools=[{"search": use} for use in uses])) == {}


def test_one_reason_of_drops_dominates() -> None:
    [alarm] = find_alarms(run_of([0.5], lost=[{"no_tokens": 0.21, "too_long": 0.2, "infra": 0.1}]))
    assert alarm.key == ("drops", "no_tokens")
    assert alarm.message.startswith("wave 0: 21% of the rollouts lost calls as `no_tokens`")


def test_rollouts_that_slowness_lost_are_told_from_those_that_an_agent_lost() -> None:
    lost = {"infra": 0.3, "constrained": 0.3, "incomplete": 0.3}
    by_reason = {alarm.subject: alarm.message for alarm in find_alarms(run_of([0.5], lost=[lost]))}
    assert "not by the agent's choice" not in by_reason.pop("constrained")
    assert list(by_reason) == ["incomplete", "infra"]
    assert by_reason["infra"].startswith(
        "wave 0: 30% of the rollouts are left out as `infra`, not by the agent's choice: the model "
        "server, the machine or a service failed or was too slow."
    )


def test_stale_rollouts_have_an_alarm_of_their_own() -> None:
    assert fired(run_of([0.5, 0.5], lost=[{"stale": 0.05}, {"stale": 0.06}])) == {1: ["stale"]}
    assert fired(run_of([0.5], lost=[{"stale": 0.9}])) == {0: ["stale"]}


def test_a_drift_of_log_probabilities_beyond_the_usual() -> None:
    drifts = [0.001, 0.002, 0.003, 0.011]
    [alarm] = find_alarms(run_of(FLOOR[:4], drift=drifts, drift_tokens=[9, 9, 9, 256]))
    assert alarm.key == ("logprob_drift", "")
    assert "k3 0.011, median of the waves before 0.002" in alarm.message
    assert fired(run_of(FLOOR[:4], drift=drifts, drift_tokens=[300, 300, 300, 255])) == {}


@pytest.mark.parametrize(
    "drifts",
    [
        [1e-14, 1e-14, 1e-14, 1e-12],  # rounding
        [0.004, 0.004, 0.004, 0.016],  # exactly four times
        [0.001, 0.001, 0.001, 0.01],  # small
        [0.002, 0.002, 0.09],  # too few waves
        [None, None, None, 0.09],
        [0.001, 0.001, 0.001, None],
    ],
)
def test_other_drifts_are_no_alarm(drifts: list[float | None]) -> None:
    tokens = [1000.0] * len(drifts)
    assert fired(run_of([0.0] * len(drifts), drift=drifts, drift_tokens=tokens)) == {}


def test_the_sentences_of_the_build_are_alarms() -> None:
    sentences = ("wave 0: executions with calls dropped as `greedy` have low rewards", "no reason")
    found = find_alarms(run_of([0.5], selective=[sentences]))
    assert [(one.key, one.message) for one in found] == [
        (("selective_drops", "greedy"), sentences[0]),
        (("selective_drops", ""), "no reason"),
    ]


def test_no_wave_has_no_alarm_and_empty_figures_have_none() -> None:
    assert find_alarms([]) == []
    assert fired([WaveFigures(wave=number) for number in range(20)]) == {}


def test_names_are_checked_with_the_nearest() -> None:
    check_names(ALARMS)
    with pytest.raises(UnknownName, match=r"Unknown alarm 'divergense'.+ mean 'divergence'"):
        check_names(["stale", "divergense"])
