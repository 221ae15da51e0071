"""The results of examples, and the pictures made from them."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks.example import summarize
from benchmarks.support.curve_svg import draw_curves

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(file.parent for file in EXAMPLES.glob("*/results/**/curve.svg"))


def result(seed: int, *scores: float) -> dict[str, Any]:
    waves = [
        {"mode": mode, "wave": 5 * number, "score": {"all": score, "easy": score / 2}}
        for number, score in enumerate(scores)
        for mode in ("val", "train")
    ]
    return {"example": "a<b", "seed": seed, "policies": {"p": {"waves": waves}}}


def test_a_picture_has_a_line_for_each_seed_and_domain() -> None:
    picture = ElementTree.fromstring(draw_curves([result(0, 0.0, 1.0), result(1, 0.5, 0.5)]))
    space = {"svg": "http://www.w3.org/2000/svg"}
    lines = [each.attrib["points"] for each in picture.findall("svg:polyline", space)]
    assert lines == [
        "48.0,260.0 490.0,28.0",
        "48.0,144.0 490.0,144.0",
        "48.0,260.0 490.0,144.0",
        "48.0,202.0 490.0,202.0",
        "48.0,260.0 490.0,28.0",
        "48.0,144.0 490.0,144.0",
    ]
    texts = [each.text for each in picture.findall("svg:text", space)]
    assert "a<b: score by updates, seed 0, 1" in texts
    assert {"all", "easy", "training, sampled", "5"} <= set(texts)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_the_picture_of_an_example_is_that_of_its_results(folder: Path) -> None:
    results = [json.loads(file.read_text()) for file in sorted(folder.glob("seed*.json"))]
    assert (folder / "curve.svg").read_text() == draw_curves(results), (
        f"run `make bench-example ARGS='{results[0]['example']}'` again"
    )


def test_the_summary_has_the_mean_over_seeds_and_the_range() -> None:
    def of(before: float, after: float) -> dict[str, Any]:
        scores = {"before": before, "after": after}
        return {"policies": {"p": {"held_out": {"versions": [0, 2], "all": scores}}}}

    assert summarize([of(0.5, 0.75), of(0.25, 1.0)]) == [
        {
            "policy": "p",
            "domain": "all",
            "seeds": 2,
            "before": 0.38,
            "before_range": [0.25, 0.5],
            "after": 0.88,
            "after_range": [0.75, 1.0],
        }
    ]
