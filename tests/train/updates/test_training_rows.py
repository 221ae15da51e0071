"""Which rows of a dataset a policy version is trained on, and what is said of the others."""

from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.otlp import insert_otlp
from tests.transforms.conftest import Scene
from tests.transforms.conftest import recipe as recipe  # fixtures
from tests.transforms.conftest import recipe_file as recipe_file
from tests.transforms.conftest import scene as scene
from tests.transforms.conftest import store as store
from tests.transforms.datasets.test_lineage import add_group, write_version

from ltrain_collector.store import Store
from ltrain_train.errors import NothingToTrain
from ltrain_train.updates.training_report import make_report
from ltrain_train.updates.training_rows import find_rows, select_rows
from ltrain_transforms.datasets import Dataset, build
from ltrain_transforms.policy_lineage import Lineage
from ltrain_transforms.recipe import Recipe


@pytest.fixture
def groups(scene: Scene, store: Store) -> list[list[str]]:
    """Three groups of rollouts in the store; a member of the third was sampled by version 0."""
    versions = ((2, 2, 2, 2), (2, 2, 2, 2), (2, 0, 2, 2))
    rollouts = [add_group(scene, each, task=f"t{n}") for n, each in enumerate(versions)]
    insert_otlp(store, scene.request())
    return rollouts


def write_versions(home: Path, ledger: list[str]) -> Path:
    folder = home / "policies" / "sql"
    for number in range(3):
        write_version(folder, number, number - 1 if number else None, ledger if number == 2 else [])
    return folder


def test_a_group_with_an_outdated_rollout_leaves_a_finished_dataset_whole(
    groups: list[list[str]], store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    dataset = build(store, recipe, tmp_path / "wave")
    lineage = Lineage.read(write_versions(tmp_path, groups[0][:1]), 2)
    rows = select_rows(dataset, lineage, max_staleness=1)
    assert sorted(rows.rollouts) == sorted(groups[1])
    assert rows.path == tmp_path / "wave.sql.parquet"
    assert sorted(pl.read_parquet(rows.path)["rollout_id"].unique()) == sorted(groups[1])
    assert rows.left_out.reasons == {"consumed": 1, "stale": 1, "outdated_group": 6}
    consumed, stale, others = rows.left_out.sentences()
    assert consumed.startswith("1 of 12 rollouts are left out: policy 'sql' was trained on them")
    assert "before (v2 on 1). Run new rollouts, or add --again" in consumed
    assert "they are stale. Raise train.max_staleness" in stale
    assert others.startswith("6 of 12 rollouts are left out: another rollout of their group is")

    fresh = select_rows(dataset, Lineage.read(write_versions(tmp_path / "b", []), 2), 2)
    assert (fresh.path, fresh.left_out.reasons) == (tmp_path / "wave" / "samples", {})
    assert sorted(fresh.rollouts) == sorted(chain(*groups))


def test_a_dataset_that_was_built_for_the_version_says_what_it_left_out(
    groups: list[list[str]], store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    lineage = Lineage.read(write_versions(tmp_path, groups[0] + groups[1][:3]), 2)
    dataset = build(store, recipe, tmp_path / "wave", lineage=lineage)
    rows = select_rows(dataset, lineage, recipe.train.max_staleness)
    assert sorted(rows.rollouts) == sorted(groups[2])
    assert rows.path == tmp_path / "wave" / "samples"
    assert (rows.left_out.rollouts, rows.left_out.reasons) == (12, {"consumed": 7})
    assert rows.left_out.consumed_by == {2: 7}


def test_data_that_the_policy_was_trained_on_is_refused_unless_again(
    groups: list[list[str]], store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    folder = write_versions(tmp_path, [*chain(*groups)])
    lineage = Lineage.read(folder, 2)
    for out, built_for in (("a", lineage), ("b", None)):
        dataset = build(store, recipe, tmp_path / out, lineage=built_for)
        with pytest.raises(NothingToTrain, match=r"12 of 12 rollouts are left out"):
            select_rows(dataset, lineage, 4)
    again = select_rows(Dataset.open(tmp_path / "b"), Lineage.read(folder, 2, again=True), 4)
    assert (len(again.rollouts), again.left_out.reasons) == (12, {})


def test_the_learner_reads_only_the_rows_of_its_policy(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    fields = recipe.model_dump(by_alias=True)
    policies = [{"name": "sql", "agents": ["write"]}, {"name": "other", "agents": ["rewrite"]}]
    two = Recipe.model_validate(fields | {"policy": policies})
    for sample in range(4):
        rollout = scene.attempt(sample=sample)
        rollout.dispatch()
        rollout.llm(response=(4, sample))
        rollout.llm("rewrite", (7, 8), (9,), gateway={"ltrain.policy.name": "other"})
        rollout.evaluate(float(sample > 1))
        rollout.close()
    insert_otlp(store, scene.request())
    dataset = build(store, two, tmp_path / "wave")
    lineage = Lineage.read(write_versions(tmp_path, []), 0)
    rows = select_rows(dataset, lineage, 4)
    assert rows.path == tmp_path / "wave.sql.parquet"
    assert pl.read_parquet(rows.path)["policy"].to_list() == ["sql"] * 4


def test_rendered_rows_of_a_version_without_weights_are_left_out_by_name(
    groups: list[list[str]], store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    dataset = build(store, recipe, tmp_path / "wave")
    for file in (dataset.path / "samples").iterdir():
        rows = pl.read_parquet(file)
        rows.with_columns(tokens=pl.lit("rendered")).write_parquet(file)
    folder = write_versions(tmp_path, [])
    (folder / "removed").mkdir()
    (folder / "v0").rename(folder / "removed" / "v0")
    selected = select_rows(dataset, Lineage.read(folder, 2), 4)
    assert len(selected.rollouts) == 11
    assert (selected.versions, selected.left_out.reasons) == ((), {"no_weights": 1})
    [sentence] = selected.left_out.sentences()
    assert sentence.startswith("1 of 12 rollouts are left out: their tokens are rendered, and the")
    (folder / "removed" / "v0").rename(folder / "v0")
    complete = select_rows(dataset, Lineage.read(folder, 2), 4)
    assert (complete.versions, len(complete.rollouts)) == ((0,), 12)
    report = make_report(
        find_rows(dataset, Lineage.read(folder, 2), 4), 2, recipe.train, shared=True
    )
    assert (report.rendered_rows, report.rows) == (report.rows, report.rendered_rows)
