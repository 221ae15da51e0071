"""No alarm fires on a run that learnt its task, and the runs that read on without end have theirs.

`honest_runs.jsonl` has the figures of each wave of such runs, read from their datasets and journals
with `read_figures`. The results of examples have the means of further runs.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from ltrain_transforms.alarms import WaveFigures, alarms_by_wave
from ltrain_transforms.alarms.kinds import ONE_SCORE

EXAMPLES = Path(__file__).parents[3] / "examples"
HONEST = [
    json.loads(line)
    for line in Path(__file__).with_name("honest_runs.jsonl").read_text().splitlines()
]
RUNS = {run: list(rows) for run, rows in groupby(HONEST, lambda row: str(row["run"]))}
AIR = sorted((EXAMPLES / "air" / "results").glob("*.json"))
BONUS = {"page-read", "reads"}
FARMED = {
    **{f"farmed-{seed}": BONUS for seed in range(4)},  # farmed-4 falls in its last two waves only
    "gated-3": {"reads"},  # its outcome stays near 0.4
}
"""What rises while the outcome does not, for the results of air with such an alarm."""
OTHERS = [file for file in sorted(EXAMPLES.glob("*/results/**/*.json")) if file not in AIR]


@pytest.mark.parametrize("run", RUNS)
def test_no_alarm_fires_on_an_honest_run(run: str) -> None:
    waves = [
        WaveFigures(**{name: value for name, value in row.items() if name != "run"})
        for row in RUNS[run]
    ]
    assert len(waves) >= 4
    assert alarms_by_wave(waves) == {}


def air_waves(result: Mapping[str, Any]) -> list[WaveFigures]:
    return [
        WaveFigures(
            wave=wave["wave"],
            outcome=wave["outcome"],
            lowest=0.0,
            best=1.0,
            rules=wave["rules"],
            others={"reads": wave["reads"]},
            tools={"read_page": wave["reads"]},
        )
        for wave in result["waves"]
    ]


@pytest.mark.parametrize("file", AIR, ids=lambda file: file.stem)
def test_the_alarms_of_air_are_those_that_the_run_printed(file: Path) -> None:
    result = json.loads(file.read_text())
    found = alarms_by_wave(air_waves(result))
    printed = {
        wave["wave"]
        for wave in result["waves"]
        if any("the policy may farm" in alarm for alarm in wave["alarms"])
    }
    assert set(found) == printed
    alarms = [alarm for each in found.values() for alarm in each]
    assert {alarm.name for alarm in alarms} <= {"divergence"}
    assert {alarm.subject for alarm in alarms} == FARMED.get(file.stem, set())


def other_waves(result: Mapping[str, Any]) -> Iterator[list[WaveFigures]]:
    for policy in result["policies"].values():
        yield [
            WaveFigures(
                wave=wave["wave"],
                outcome=wave["score"]["all"],
                rules=wave["rules"],
                others=wave["evaluations"],
            )
            for wave in policy["waves"]
            if wave["mode"] == "train"
        ]


@pytest.mark.parametrize("file", OTHERS, ids=lambda file: str(file.relative_to(EXAMPLES)))
def test_no_alarm_fires_on_the_curves_of_the_other_examples(file: Path) -> None:
    for waves in other_waves(json.loads(file.read_text())):
        assert waves
        assert alarms_by_wave(waves) == {}


FORMAT = 0.1
"""The reward of rag for an answer in its tag that has no right word."""
RAG = sorted((EXAMPLES / "rag" / "results").glob("**/*.json"))


@pytest.mark.parametrize("file", RAG, ids=lambda file: str(file.relative_to(EXAMPLES)))
def test_most_rollouts_of_rag_have_more_than_the_reward_of_the_format(file: Path) -> None:
    for waves in other_waves(json.loads(file.read_text())):
        for wave in waves:
            assert wave.outcome is not None
            # the others have 1 at most, so a mean allows no larger share
            assert (1 - wave.outcome) / (1 - FORMAT) < ONE_SCORE
