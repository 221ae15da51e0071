"""The figures of `make bench-air`, and the page and the picture made from its results."""

from typing import Any
from xml.etree import ElementTree

from benchmarks import air

RESULTS = air.load_results()


def result(variant: str, seed: int, *outcomes: float, alarms: tuple[int, ...] = ()) -> Any:
    waves = [
        {
            "wave": number,
            "rollouts": 96,
            "outcome": outcome,
            "reads": 2.0,
            "rules": {},
            "alarms": [air.FARMED] if number in alarms else [],
        }
        for number, outcome in enumerate(outcomes)
    ]
    return {"variant": variant, "seed": seed, "waves": waves}


def test_rollouts_are_counted_to_the_end_of_the_first_wave_at_the_bar() -> None:
    assert air.rollouts_to_bar(result("rules off", 0, 0.1, 0.79, 0.8, 0.2, 0.9)) == 288
    assert air.rollouts_to_bar(result("rules off", 0, 0.1, 0.79)) is None


def test_a_run_that_does_not_reach_the_bar_is_above_all_others_in_the_table() -> None:
    runs = [
        result("rules off", 0, 0.1, 0.2, 0.9),
        result("rules off", 1, 0.1, 0.2, 0.3),
        result("rules off", 2, 0.8, 0.9, 1.0),
        result("plain bonus", 0, 0.0, 0.0, 0.0, alarms=(1, 2)),
    ]
    assert air.draw_table(runs).splitlines()[2:] == [
        "| rules off | `rules_off.toml` | **288** (96; 288; never) | 0.40 (0.20 to 0.90) "
        "| 2.00 (2.00 to 2.00) | none |",
        "| plain bonus | `farmed.toml` | **never** (never) | 0.00 (0.00 to 0.00) "
        "| 2.00 (2.00 to 2.00) | 1 |",
    ]


def test_the_picture_has_a_faint_line_for_each_run_and_one_for_their_median() -> None:
    runs = [result("rules off", seed, 0.0, score) for seed, score in enumerate((0.0, 0.5, 1.0))]
    picture = ElementTree.fromstring(air.draw_picture(runs))
    lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert [line.get("stroke-opacity") for line in lines] == ["0.25", "0.25", "0.25", None]
    assert lines[1].get("points") == lines[3].get("points") == "48.0,260.0 490.0,144.0"
    texts = [each.text for each in picture.findall("{http://www.w3.org/2000/svg}text")]
    assert "rules off" in texts and "plain bonus" not in texts


def test_the_page_and_the_picture_are_those_of_the_results() -> None:
    page = (air.EXAMPLE / "README.md").read_text()
    assert page == air.replace_table(page, RESULTS), "run `make bench-air` again"
    drawn = air.PICTURE.read_text() if air.PICTURE.exists() else None
    assert drawn == (air.draw_picture(RESULTS) if RESULTS else None), "run `make bench-air` again"


def test_only_the_farmed_rule_raises_the_alarm() -> None:
    farmed = {"plain bonus"} & {result["variant"] for result in RESULTS}
    fired = {
        result["variant"] for result in RESULTS for wave in result["waves"] if air.is_farmed(wave)
    }
    assert fired == farmed
