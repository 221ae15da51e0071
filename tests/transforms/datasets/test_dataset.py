import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.damage import Damage, cut_in_half, damage_file, flip_a_bit
from tests.otlp import insert_otlp

from ltrain_collector.store import Store
from ltrain_instrument.errors import UnknownName
from ltrain_transforms.datasets.build import build
from ltrain_transforms.datasets.dataset import Dataset
from ltrain_transforms.datasets.manifest import MANIFEST
from ltrain_transforms.errors import BadRecipe, DamagedDataset, NoDataset, NothingToBuild
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports import dataset_report
from ltrain_transforms.reports.report import Grid
from ltrain_transforms.tables import TABLES


def fill(scene: Any) -> Any:
    for task in ("t1", "t2"):
        for sample in range(3):
            rollout = scene.attempt(task, sample)
            rollout.dispatch()
            rollout.llm("write", (1, 2, 3), (4, sample))
            rollout.tool(error="boom()" if sample == 1 else "")
            if sample == 1:
                rollout.llm("rewrite", (7, 8), (9,))
            rollout.evaluate(float(sample == 0))
            rollout.close()
    return scene


def test_a_dataset_without_a_column_is_named(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    insert_otlp(store, fill(scene).request())
    made = build(store, recipe, tmp_path / "out")
    for file in (made.path / "executions").iterdir():
        pl.read_parquet(file).drop("task_input").write_parquet(file)
    with pytest.raises(
        NoDataset, match=r"executions of .*: unable to find column \"task_input\"\. B"
    ):
        made.batches[0].table("executions", ["execution_id", "task_input"])


def test_a_dataset_is_a_folder_of_tables_and_a_manifest(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    insert_otlp(store, fill(scene).request())
    made = build(store, recipe, tmp_path / "out", base={"model": "m1"})
    assert made.counts == {
        "calls": 28,
        "executions": 6,
        "states": 24,
        "rewards": 8,
        "transitions": 8,
        "samples": 8,
        "drops": 0,
    }
    opened = Dataset.open(tmp_path / "out")
    assert (opened.id, opened.counts) == (made.id, made.counts)
    for table in TABLES:
        assert opened.table(table.name).schema == table.schema
        assert_frame_equal(opened.table(table.name), made.table(table.name))
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["id"], manifest["schema"], manifest["recipe_digest"]) == (
        made.id,
        6,
        recipe.digest,
    )
    assert (manifest["base"], manifest["policy_versions"]) == ({"model": "m1"}, {"sql": [0]})
    assert (manifest["task_files"], manifest["drops"]) == (["d1g357"], {})
    names = sorted(path.name for path in tmp_path.iterdir() if path.name != "store")
    assert names == ["ltrain.toml", "out"]


@pytest.mark.parametrize("damage", [flip_a_bit, cut_in_half])
def test_each_damaged_file_is_named(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path, damage: Damage
) -> None:
    insert_otlp(store, fill(scene).request())
    made = build(store, recipe, tmp_path / "out")
    files = made.manifest["files"]
    names = {f"{table}/00000.parquet" for table in made.counts}
    assert set(files) == names | {"drops/00001.parquet"}
    for name in files:
        content = (made.path / name).read_bytes()
        damage_file(made.path / name, damage)
        assert not made.is_intact
        with pytest.raises(DamagedDataset, match=rf"is damaged: {name} has .* Build it again"):
            made.require_intact()
        (made.path / name).write_bytes(content)
    assert made.require_intact() is made


def test_a_changed_manifest_is_named(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    insert_otlp(store, fill(scene).request())
    made = build(store, recipe, tmp_path / "out")
    file = made.path / MANIFEST
    file.write_text(file.read_text().replace('"calls": 28', '"calls": 29'))
    with pytest.raises(NoDataset, match=r"manifest\.json \(its content has the SHA-256"):
        Dataset.open(made.path)


@pytest.mark.parametrize(
    ("content", "clause"),
    [(b"PAR1", "calls cannot be read"), (None, "calls has 0 rows, expected 28")],
)
def test_of_a_dataset_of_an_older_version_rows_are_counted(
    scene: Any,
    store: Store,
    recipe: Recipe,
    tmp_path: Path,
    content: bytes | None,
    clause: str,
) -> None:
    insert_otlp(store, fill(scene).request())
    made = build(store, recipe, tmp_path / "out")
    (made.path / MANIFEST).write_text(json.dumps(made.manifest | {"files": None}))
    assert made.find_damage() is None
    file = made.path / "calls" / "00000.parquet"
    if content is None:
        made.table("calls").clear().write_parquet(file)
    else:
        file.write_bytes(content)
    assert (made.find_damage() or "").startswith(clause)


def test_the_id_does_not_depend_on_the_order_of_rows(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    fill(scene)
    ids = set()
    for seed in range(3):
        chance = random.Random(seed)
        store.command("TRUNCATE TABLE otel.otel_traces")
        insert_otlp(store, scene.request(lambda spans, by=chance: by.sample(spans, len(spans))))
        ids.add(build(store, recipe, tmp_path / "out").id)
    assert len(ids) == 1
    insert_otlp(store, scene.request())
    assert build(store, recipe, tmp_path / "out").id in ids, "what is sent twice is one span"
    heavier = recipe.reward[1].model_copy(update={"weight": 2.0})
    other = recipe.model_copy(update={"reward": (recipe.reward[0], heavier)})
    assert build(store, other, tmp_path / "other").id not in ids


def test_a_whole_wave_is_built(scene: Any, store: Store, recipe: Recipe, tmp_path: Path) -> None:
    for number in range(96):
        rollout = scene.attempt(f"t{number // 8}", number % 8)
        for node in ("write", "rewrite"):
            rollout.llm(node, range(200), range(40), text="SELECT " + "x" * 500)
            rollout.tool(error="boom()" if number % 2 else "")
        rollout.evaluate(float(number % 4 == 0))
        rollout.close()
    insert_otlp(store, scene.request())
    made = build(store, recipe, tmp_path / "out", wave=0)
    assert made.counts["samples"] == 192


def test_spans_without_a_call_are_counted_apart_from_drops(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    fill(scene)
    post = scene.attempts[0].emit("POST", "httpx", {}, named=False)
    insert_otlp(store, scene.request())
    built = build(store, recipe, tmp_path / "out")
    assert (built.drops.height, built.other_spans) == (0, 1)
    rows = built.table("drops").select("stage", "id", "reason").rows()
    assert rows == [("spans", post, "not_a_call")]
    report = dataset_report(built)
    [grid] = [part for part in report.parts if isinstance(part, Grid) and part.title == "Rows"]
    assert grid.rows[-2:] == (("drops", 0), ("other spans", 1))


def test_an_empty_store_is_an_error(store: Store, recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(
        NothingToBuild,
        match=r"run demo, mode train\)\. The store has no traces yet\. Start `ltrain up`",
    ):
        build(store, recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_store_without_tables_is_an_error(recipe: Recipe, tmp_path: Path) -> None:
    with (
        Store.open(f"chdb://{tmp_path}/bare") as bare,
        pytest.raises(NothingToBuild, match="holds no execution"),
    ):
        build(bare, recipe, tmp_path / "out")


def test_the_runs_in_the_store_are_named(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    insert_otlp(store, fill(scene).request())
    with pytest.raises(NothingToBuild, match=r"run demmo.*Runs in the store: demo"):
        build(store, recipe, tmp_path / "out", run="demmo")
    with pytest.raises(NothingToBuild, match=r"run 6, mode 6, wave 0, with a rollout id"):
        build(store, recipe, tmp_path / "out", wave=9)


def test_an_invalid_condition_is_an_error_with_the_columns(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    insert_otlp(store, fill(scene).request())
    wrong = recipe.source.model_copy(update={"where": "ServiceNam = 'agent'"})
    with pytest.raises(BadRecipe, match=r"source.where = 'ServiceNam .*Columns: .*ServiceName"):
        build(store, recipe.model_copy(update={"source": wrong}), tmp_path / "out")


def test_a_folder_that_is_not_a_dataset_is_not_changed(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    insert_otlp(store, fill(scene).request())
    precious = tmp_path / "out" / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("all of it")
    with pytest.raises(NoDataset, match="is not a dataset"):
        build(store, recipe, tmp_path / "out")
    assert precious.read_text() == "all of it"
    with pytest.raises(NoDataset, match=r"no readable manifest\.json"):
        Dataset.open(tmp_path / "out")


def test_a_mistyped_table_is_offered_its_neighbour(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'samples'"):
        Dataset("id", tmp_path, {"samples": 0}).table("sample")


@pytest.mark.parametrize("manifest", ["{", "{}", "[]", '{"id": "a", "counts": null}'])
def test_an_invalid_manifest_is_an_error(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(NoDataset, match="has no readable manifest"):
        Dataset.open(tmp_path)
