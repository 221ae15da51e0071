"""The rows that a run prints for its waves."""

from typing import Any

from tests.train.runs.journals import TRAINED, VALIDATION, changed

from ltrain_train.runs.journal import Wave
from ltrain_train.runs.report import WaveRows, wave_notes
from ltrain_transforms.recipe import Recipe

RECIPE = Recipe.model_validate(
    {
        "policy": [{"name": "sql"}],
        "reward": [
            {"name": "answer", "evaluation": "reward"},
            {"name": "tool-failed", "use": "tool-failed"},
        ],
    }
)


def lines(*waves: Wave) -> list[str]:
    rows = WaveRows(RECIPE)
    return [line for wave in waves for line in rows.lines(wave)]


def test_each_wave_is_a_row_below_one_heading() -> None:
    assert lines(VALIDATION, TRAINED) == [
        "                                     tool-",
        "wave       v failed executed reward failed  rows   gen  data train  load drift",
        "val 0      0      1    0.700  0.417                6.0",
        "  96 rollouts at temperature 0: 95 ok, 1 timeout.",
        "train 0    0           0.650  0.300 -0.090    52  12.0   1.0  30.0   2.0 0.001",
    ]


def test_a_run_that_swaps_has_a_column_of_its_seconds() -> None:
    rows = WaveRows(RECIPE, swaps=True)
    moved = changed(TRAINED, seconds={**TRAINED.seconds, "swap": 1.25})
    _, heading, row, *_ = rows.lines(moved)
    assert heading.endswith("train  load  swap drift")
    assert row.endswith("30.0   2.0   1.2 0.001")


def test_the_rows_fit_eighty_columns() -> None:
    assert max(map(len, lines(VALIDATION, TRAINED))) <= 80


def test_a_new_score_has_a_new_heading() -> None:
    more: Any = changed(TRAINED, evaluations={"executed": 1.0, "reward": 1.0, "style": 0.5})
    headings = [line for line in lines(TRAINED, more, more) if line.startswith("wave")]
    assert ["style" in heading for heading in headings] == [False, True]


def test_a_wave_without_a_rule_that_fired_has_an_empty_cell() -> None:
    [_, _, row] = lines(changed(TRAINED, rules={}))
    assert "0.300           52" in row


def test_a_wave_without_rows_shows_why() -> None:
    taught = changed(TRAINED, published=None)
    equal = ["  nothing to learn: within each group all rewards are equal"]
    assert list(wave_notes(taught)) == equal
    assert list(wave_notes(changed(taught, drops={"no_spread": 8, "superseded": 1}))) == equal
    other = changed(taught, drops={"no_spread": 8, "constrained": 2}, failures="2 failed.")
    assert list(wave_notes(other)) == [
        "  nothing to learn: its drops are 2 constrained, 8 no_spread. 2 failed."
    ]


def test_undone_steps_and_alarms_are_notes() -> None:
    wave = changed(TRAINED, published=None, undone=2, alarms=["low rewards"])
    assert list(wave_notes(wave)) == [
        "  no new version: 2 optimizer steps undone",
        "  alarm: low rewards",
    ]
    assert list(wave_notes(TRAINED)) == []


def test_calls_that_did_not_continue_by_tokens_are_a_note() -> None:
    assert list(wave_notes(changed(TRAINED, prompts={"continued": 9, "first call": 1}))) == []
    prompts = {"continued": 36, "unknown": 4, "first call": 3, "cut": 1}
    assert list(wave_notes(changed(TRAINED, prompts=prompts))) == [
        "  not continued by tokens: 4 unknown, 1 cut, of 44 calls"
    ]


def test_a_held_out_score_always_shows_its_rollouts_by_outcome_and_the_temperature() -> None:
    wave = changed(
        VALIDATION,
        mode="test",
        rollouts=30,
        outcomes={"timeout": 2, "ok": 25, "infra": 3},
        failures="5 of 30 rollouts failed, 3 of them as infra: it reached the wall limit.",
        temperature=0.7,
    )
    assert list(wave_notes(wave)) == [
        "  30 rollouts at temperature 0.7: 3 infra (left out), 25 ok, 2 timeout. 5 of 30 rollouts "
        "failed, 3 of them as infra: it reached the wall limit."
    ]
