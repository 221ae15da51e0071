import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ltrain_train.loop.journal import Journal, Wave
from ltrain_train.loop.report import idle_share, time_spent, wave_line, wave_table

WAVES = [
    Wave(
        mode="val",
        wave=0,
        version=0,
        rollouts=96,
        outcomes={"ok": 95, "timeout": 1},
        evaluations={"executed": 0.7, "reward": 0.417},
        seconds={"generate": 6.0},
    ),
    Wave(
        mode="train",
        wave=0,
        version=0,
        rollouts=96,
        outcomes={"ok": 96},
        evaluations={"executed": 0.65, "reward": 0.3},
        rules={"tool-failed": -0.09},
        published=1,
        samples=52,
        seconds={"generate": 12.0, "settle": 0.5, "build": 0.5, "train": 30.0, "load": 2.0},
    ),
]


def journal() -> Journal:
    return Journal(folder=Path(), run="sql", recipe="r", policy="sql", base=0, waves=WAVES)


def test_a_line_shows_scores_seconds_and_the_version() -> None:
    assert wave_line(WAVES[1]) == (
        "train 0 (v0): executed 0.650  reward 0.300  tool-failed -0.090  | generate 12.0 s  "
        "settle 0.5 s  build 0.5 s  train 30.0 s  load 2.0 s  -> v1 from 52 rows"
    )


def test_the_table_fits_eighty_columns_and_has_every_number() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(wave_table(journal()))
    text = console.export_text()
    for number in ("0.417", "-0.090", "30.0", "52"):
        assert number in text
    assert max(map(len, text.splitlines())) <= 80


def test_time_is_split_into_engines_and_the_rest() -> None:
    text = time_spent(journal().waves, wall=61.0)
    assert text == (
        "61 s: start and end 10 s, generate 18 s, settle 0 s, build 0 s, train 30 s, load 2 s. "
        "No generation, training or weight load in 18% of it."
    )
    assert idle_share({"settle": 5.0}, 10.0) == 1.0
    assert time_spent([], wall=9.0).startswith("9 s: start and end 9 s. No generation")


def test_a_wave_without_rows_shows_why() -> None:
    taught = replace(WAVES[1], published=None)
    equal = "nothing to learn: within each group all rewards are equal"
    assert wave_line(taught).endswith(equal)
    assert wave_line(replace(taught, drops={"no_spread": 8, "superseded": 1})).endswith(equal)
    other = replace(taught, drops={"no_spread": 8, "constrained": 2}, failures="2 failed.")
    assert wave_line(other).endswith(
        "nothing to learn: its drops are 2 constrained, 8 no_spread. 2 failed."
    )
