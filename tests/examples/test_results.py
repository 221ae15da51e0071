"""The results of examples, and the pictures made from them."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks.support.curve_svg import draw_curves
from benchmarks.support.results_table import draw_table, find_pages, replace_table

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


def test_the_table_has_the_mean_over_seeds_and_the_range(tmp_path: Path) -> None:
    def write(recipe: str, seed: int, before: float, after: float) -> None:
        file = tmp_path / "a" / "results" / recipe / f"seed{seed}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        held_out = {"tasks": 8, "before": before, "after": after, "interval_95": [-0.1, after]}
        figures = {"held_out": {"versions": [0, 2], "all": held_out}}
        own = {"example": "a", "recipe": recipe, "seed": seed, "machine": "one core"}
        seconds = {"train": 60.0 + 60 * seed, "first_to_last_phase": 999.0}
        file.write_text(json.dumps(own | {"seconds": seconds, "policies": {"p": figures}}))

    write("ltrain.toml", 0, 0.5, 0.75)
    write("ltrain.toml", 1, 0.5, 1.0)
    write("a.toml", 0, 0.5, 0.25)
    assert draw_table(tmp_path).splitlines()[2:] == [
        "| [a](a) | ltrain.toml | 8 all | 0, 1 | 0.50 | 0.88 (0.75 to 1.00) | -0.10 to +1.00 "
        "| 1.5 | one core |",
        "| [a](a) | a.toml | 8 all | 0 | 0.50 | 0.25 | -0.10 to +0.25 | 1.0 | one core |",
    ]


@pytest.mark.parametrize("page", find_pages(EXAMPLES), ids=lambda page: page.parent.name)
def test_the_table_of_a_page_is_that_of_the_results(page: Path) -> None:
    assert page.read_text() == replace_table(EXAMPLES, page), "run `make bench-example` again"


def test_each_example_with_results_has_their_table_and_picture_on_its_page() -> None:
    pages = [page.parent for page in find_pages(EXAMPLES)]
    for folder in FOLDERS:
        example = next(each for each in folder.parents if each.parent == EXAMPLES)
        assert example in pages
        picture = (folder / "curve.svg").relative_to(example)
        assert f"]({picture})" in (example / "README.md").read_text()
        assert f"]({example.name}/{picture})" in (EXAMPLES / "README.md").read_text()
