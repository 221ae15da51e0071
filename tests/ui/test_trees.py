"""Trees are derived once, and again when what they are derived from is another."""

from pathlib import Path

from tests.otlp import insert_otlp
from tests.transforms.conftest import RECIPE, Attempt, Attributes, Scene

from ltrain_collector.store import Store
from ltrain_transforms.datasets import build, dataset_folder
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.show import Extent
from ltrain_ui.sources import Sources
from ltrain_ui.trees import TreeAddress, Trees


def closed(scene: Scene, sample: int) -> Attempt:
    rollout = scene.attempt("t1", sample)
    rollout.dispatch()
    rollout.llm("write", text=f"answer {sample}")
    rollout.evaluate(float(sample))
    return rollout.close()


def insert(store: Store, scene: Scene) -> None:
    insert_otlp(store, scene.request())


def test_a_tree_is_kept_until_its_group_or_the_recipe_changes(tmp_path: Path) -> None:
    recipe, dsn = tmp_path / "ltrain.toml", f"chdb://{tmp_path}/store"
    recipe.write_text(RECIPE)
    scene = Scene()
    rollout = closed(scene, 1)
    with Sources(dsn, tmp_path, recipe) as sources:
        with Store.open(dsn) as store:
            store.migrate()
            insert(store, scene)
        trees = Trees(sources)
        address = TreeAddress(f"rollout:{rollout.rollout}")
        first = trees.open(address)
        assert first.next is None and first.tree.extent == Extent.CREDIT
        assert first.tree.attempts[0].group == [1.0]
        assert trees.open(address).tree is first.tree
        assert trees.get(first.key, address) is first.tree
        closed(scene, 0)
        sources.read(lambda store: insert(store, scene))
        second = trees.open(address)
        assert second.key != first.key and second.tree.attempts[0].group == [1.0, 0.0]
        recipe.write_text(RECIPE.replace("-0.2", "-0.25"))
        assert trees.open(address).key != second.key


def test_a_part_of_a_tree_is_followed_by_the_next(tmp_path: Path) -> None:
    scene, dsn = Scene(), f"chdb://{tmp_path}/store"
    rollout = closed(scene, 0)
    with Store.open(dsn) as store:
        store.migrate()
        insert(store, scene)
    with Sources(dsn, tmp_path, None) as sources:
        trees = Trees(sources)
        extent: Extent | None = Extent.FIRST
        parts = []
        while extent is not None:
            opened = trees.open(TreeAddress(f"rollout:{rollout.rollout}", extent))
            parts.append(opened.tree.extent)
            extent = opened.next
        assert parts == [Extent.FIRST, Extent.CALLS, Extent.CREDIT]
        trace = trees.open(TreeAddress(f"trace:{rollout.trace}", Extent.FIRST))
        assert trace.tree.kind == "rollout", "its only rollout"


def test_the_last_report_of_a_process_is_no_newer_content_than_the_dataset(tmp_path: Path) -> None:
    recipe, dsn = tmp_path / "ltrain.toml", f"chdb://{tmp_path}/store"
    recipe.write_text(RECIPE)
    scene = Scene()
    rollouts = [closed(scene, sample) for sample in range(2)]
    with Sources(dsn, tmp_path, recipe) as sources:
        with Store.open(dsn) as store:
            store.migrate()
            insert(store, scene)
            build(store, Recipe.load(recipe), dataset_folder(tmp_path, "demo", "train", 0), wave=0)
        trees, address = Trees(sources), TreeAddress(f"rollout:{rollouts[0].rollout}")
        report: Attributes = {"ltrain.process.spans": 0}
        rollouts[0].emit("ltrain.process", "ltrain.instrument", report, process="worker")
        sources.read(lambda store: insert(store, scene))
        opened = trees.open(address)
        assert opened.tree.extent == Extent.TRAINED and not opened.has_newer
        rollouts[0].evaluate(1.0)
        sources.read(lambda store: insert(store, scene))
        assert trees.open(address).has_newer
