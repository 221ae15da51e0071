"""The numbers of docs/concepts/credit.md are those that the recipe of the page gives."""

import re
import tomllib
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT, read_blocks
from tests.otlp import insert_otlp, open_empty_store
from tests.transforms.conftest import Scene

from ltrain_transforms.datasets import build
from ltrain_transforms.recipe import Recipe

PAGE = ROOT / "docs" / "concepts" / "credit.md"
POLICY = {"source": {"run": "demo"}, "policy": [{"name": "sql"}]}
ROW = re.compile(r"^\| ([ABC]), call ([01]) \| (\S+) \| (\S+) \| (\S+) \|$", re.MULTILINE)
ROLLOUTS = {"A": (1.0, ""), "B": (0.0, "no such table: singers"), "C": (0.0, "")}
"""The evaluation of each rollout of the page, and the error of its tool."""


def test_the_worked_example_is_what_a_build_computes(tmp_path: Path) -> None:
    [toml] = [block for block in read_blocks(PAGE, PAGE.read_text()) if block.language == "toml"]
    recipe = Recipe.model_validate(POLICY | tomllib.loads(toml.text))
    scene = Scene()
    names = {}
    for sample, (name, (value, error)) in enumerate(ROLLOUTS.items()):
        attempt = scene.attempt("norway", sample)
        names[attempt.identity.rollout] = name
        attempt.dispatch()
        attempt.llm("write", (1, 2, 3), (4, 5), text="SELECT")
        attempt.tool(error=error)
        attempt.llm("write", (1, 2, 3, 4, 5, 6), (7,), text="3")
        attempt.evaluate(value)
        attempt.close()
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, scene.request())
        dataset = build(store, recipe, tmp_path / "dataset")
    rollouts = {
        row["execution_id"]: names[row["rollout_id"]]
        for row in dataset.table("executions").to_dicts()
    }
    turns = {row["call_id"]: row["turn_index"] for row in dataset.table("calls").to_dicts()}
    computed = {
        (rollouts[row["execution_id"]], turns[row["call_id"]]): (
            row["outcome_advantage"],
            row["process_advantage"],
            row["advantage"],
        )
        for row in dataset.table("transitions").to_dicts()
    }
    printed = {
        (name, int(turn)): tuple(map(float, numbers))
        for name, turn, *numbers in ROW.findall(PAGE.read_text())
    }
    assert computed.keys() == printed.keys() and len(printed) == 6
    for call, numbers in printed.items():
        assert computed[call] == pytest.approx(numbers, abs=6e-4), call
