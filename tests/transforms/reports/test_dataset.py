"""The reports on one dataset and on the difference of two."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.otlp import insert_otlp

from ltrain_collector.store import Store
from ltrain_transforms.datasets import Dataset, build
from ltrain_transforms.errors import NoDataset, NothingToShow
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports.dataset import PROMPTS
from ltrain_transforms.reports.difference import recipe_differences
from ltrain_transforms.reports.report import Cell, Facts, Grid, Histogram, Report
from ltrain_transforms.show import look_up


def fill(scene: Any, *tasks: str) -> Any:
    for task in tasks:
        for sample in range(2):
            rollout = scene.attempt(task, sample)
            rollout.dispatch()
            rollout.llm("write", (1, 2, 3), (4, 5))
            rollout.tool(error="boom()" if sample == 0 else "")
            rollout.evaluate(float(sample))
            rollout.close()
    return scene


def rows(found: object, title: str) -> list[tuple[Cell, ...]]:
    assert isinstance(found, Report)
    (part,) = (one for one in found.parts if one.title == title)
    assert isinstance(part, Grid | Facts)
    return list(part.rows)


@pytest.fixture
def made(scene: Any, store: Store, recipe: Recipe, tmp_path: Path) -> Dataset:
    insert_otlp(store, fill(scene, "t1").request())
    return build(store, recipe, tmp_path / "datasets" / "first", base={"model": "m1"})


def test_histograms_hold_every_value_once(made: Dataset, tmp_path: Path) -> None:
    found = look_up(str(made.path), home=tmp_path)
    assert isinstance(found, Report)
    histograms = {part.title: part.bins for part in found.parts if isinstance(part, Histogram)}
    # every row has two trained tokens: one value has no histogram
    assert list(histograms) == ["Outcome of an execution", "Advantage of a call"]
    outcome = histograms["Outcome of an execution"]
    assert [count for _, _, count in outcome] == [1, *[0] * 22, 1]
    assert (outcome[0][0], outcome[-1][1]) == pytest.approx((0.0, 1.0))
    assert sum(count for _, _, count in histograms["Advantage of a call"]) == 2


def test_content_and_lineage(made: Dataset, recipe: Recipe, tmp_path: Path) -> None:
    found = look_up(str(made.path), home=tmp_path)
    assert found.title == f"dataset {made.id}"
    assert rows(found, "Rows") == [*made.counts.items(), ("other spans", 0)]
    assert rows(found, "Executions") == [("demo", "train", 0, "ok", 2)]
    assert rows(found, "Policies") == [("sql", "0")]
    lineage = {row[0]: row[1] for row in rows(found, "Lineage")}
    assert lineage["recipe"] == recipe.digest
    assert (lineage["task files"], lineage["base"]) == ("d1g357", "model m1")
    assert lineage["selected"] == "mode train, run demo"
    assert rows(found, "Rewards by rule") == [
        ("answer", "runner", 1.0, 2, 1.0, 0.5),
        ("tool-failed", "rule", 1.0, 1, pytest.approx(-0.2), pytest.approx(-0.2)),
    ]
    numbers = {row[0]: row[1:] for row in rows(found, "Distribution")}
    assert numbers["outcome of an execution"] == (2, 0, 0, 0.5, 0.5, 1, 1)
    assert numbers["trained tokens of a row"] == (2, 2, 2, 2, 2, 2, 2)
    assert numbers["advantage of a call"][1] == pytest.approx(-0.807, abs=1e-3)


def test_calls_are_counted_by_the_reason_of_a_plain_prompt(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    kinds = [(0, ""), (5, ""), (9, ""), (0, "cut")]
    for sample in range(2):
        rollout = scene.attempt("t1", sample)
        rollout.dispatch()
        for continued, reason in kinds:
            plain = {"ltrain.not_continued": reason} if reason else {}
            rollout.llm("write", gateway={"ltrain.continued": continued, **plain})
        rollout.evaluate(float(sample))
        rollout.close()
    insert_otlp(store, scene.request())
    made = build(store, recipe, tmp_path / "out")
    counted = rows(look_up(str(made.path), home=tmp_path), PROMPTS)
    assert counted == [("continued", 4), ("cut", 2), ("first call", 2)]


def test_unknown_names_of_the_recipe_are_listed(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    insert_otlp(store, fill(scene, "t1").request())
    misspelt = recipe.model_dump(by_alias=True) | {
        "policy": [{"name": "sql", "agents": ["wrtie"]}, {"name": "sqll"}],
        "credit": {"step": {"state": ["awnser"]}},
    }
    made = build(store, Recipe.model_validate(misspelt), tmp_path / "out")
    agents, policy, (state, variable) = rows(
        look_up(str(made.path), home=tmp_path), "Unknown names in the recipe"
    )
    near = "Unknown agent or node 'wrtie'. Choose from: write. Did you mean 'write'?"
    assert agents == ("policy.agents", near)
    near = "Unknown policy 'sqll'. Choose from: sql. Did you mean 'sql'?"
    assert policy == ("policy.name", near)
    assert (state, str(variable)[-23:]) == ("credit.step.state", " Did you mean 'answer'?")


def test_a_damaged_policy_does_not_hide_a_dataset(made: Dataset, tmp_path: Path) -> None:
    version = tmp_path / "policies" / "sql" / "v1"
    version.mkdir(parents=True)
    (version / "policy.json").write_text("{")
    lineage = {row[0]: row[1] for row in rows(look_up(str(made.path), home=tmp_path), "Lineage")}
    assert str(lineage["trained"]).startswith(f"not known: {version}/policy.json is not a valid")


def test_a_dataset_is_found_by_its_id_in_the_home(made: Dataset, tmp_path: Path) -> None:
    assert look_up(made.id, home=tmp_path).title == f"dataset {made.id}"


def test_the_same_dataset_differs_in_nothing(made: Dataset, tmp_path: Path) -> None:
    found = look_up(made.id, home=tmp_path, against=str(made.path))
    assert found.title == f"dataset {made.id} against {made.id} (the same rows)"
    assert rows(found, "Recipe keys that differ") == []
    assert [row[1] for row in rows(found, "Calls of the policy")] == [0, 0, 0]
    assert [row[1] for row in rows(found, "Executions only in one")] == [0, 0]


def test_a_difference_names_keys_executions_and_advantages(
    made: Dataset, scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    insert_otlp(store, fill(scene, "t2").request())
    heavier = recipe.reward[1].model_copy(update={"weight": 3.0})
    recipe = recipe.model_copy(update={"reward": (recipe.reward[0], heavier)})
    other = build(store, recipe, tmp_path / "datasets" / "second")
    found = look_up(made.id, home=tmp_path, against=other.id)
    assert rows(found, "Recipe keys that differ") == [("reward[tool-failed].weight", "1.0", "3.0")]
    executions = sorted(one.execution for one in scene.attempts[2:])
    assert rows(found, "Executions only in one") == [
        (made.id, 0, ""),
        (other.id, 2, ", ".join(executions)),
    ]
    assert rows(found, "Calls of the policy") == [
        ("with another advantage", 2),
        (f"only in {made.id}", 0),
        (f"only in {other.id}", 2),
    ]
    first, second = rows(found, "Advantages that differ most")
    assert {first[4], second[4]} == {one.execution for one in scene.attempts[:2]}
    assert [float(str(row[3])) for row in (first, second)] == pytest.approx([0.2, 0.2])
    assert isinstance(found, Report)
    assert len(found.data["advantages"]) == 4


def test_recipe_keys_that_are_in_one_only() -> None:
    one = {"filter": {"max_tokens": 1}, "reward": [{"name": "a", "value": "1"}], "policy": []}
    other = {"filter": {"max_tokens": 2}, "reward": [], "policy": []}
    assert list(recipe_differences(one, other)) == [
        ("filter.max_tokens", "1", "2"),
        ("reward", "not there", "[]"),
        ("reward[a].name", "a", "not there"),
        ("reward[a].value", "1", "not there"),
    ]


def test_against_compares_datasets_only(made: Dataset, tmp_path: Path) -> None:
    with pytest.raises(
        NothingToShow, match=r"--against compares two datasets, and 'demo' is not one"
    ):
        look_up(made.id, home=tmp_path, against="demo")


def test_a_damaged_dataset_is_an_error(made: Dataset, tmp_path: Path) -> None:
    (part,) = (made.path / "samples").glob("*.parquet")
    pl.read_parquet(part).drop("begins").write_parquet(part)
    with pytest.raises(
        NoDataset, match=r"first is damaged or was built by another version.*begins"
    ):
        look_up(made.id, home=tmp_path)
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(NoDataset, match=r"Build it again with `ltrain build`"):
        look_up(made.id, home=tmp_path)
