"""Rollouts that are outdated for the trained policy version leave their groups before credit."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.otlp import insert_otlp

from ltrain_collector.store import Store
from ltrain_transforms.datasets.build import build
from ltrain_transforms.errors import BadPolicyFile
from ltrain_transforms.policy_file import PolicyVersion
from ltrain_transforms.policy_lineage import Lineage, write_ledger
from ltrain_transforms.recipe import Recipe

REWARDS = (0.0, 0.25, 1.0, 1.0)


def add_group(scene: Any, versions: tuple[int, ...], **more: Any) -> list[str]:
    """Add a rollout for each version that sampled one, and return their ids."""
    for sample, version in enumerate(versions):
        rollout = scene.attempt(sample=sample, **more)
        rollout.dispatch()
        rollout.llm(gateway={"ltrain.policy.version": version}, response=(4, sample))
        rollout.tool(error="boom()" if sample == 1 else "")
        rollout.llm("rewrite", (7, 8), (9,), gateway={"ltrain.policy.version": version})
        rollout.evaluate(REWARDS[sample])
        rollout.close()
    return [each.rollout for each in scene.attempts[-len(versions) :]]


def write_version(folder: Path, number: int, parent: int | None, ledger: list[str]) -> None:
    directory = folder / f"v{number}"
    directory.mkdir(parents=True)
    manifest = PolicyVersion(policy=folder.name, version=number, parent=parent, created=0, files={})
    (directory / "policy.json").write_text(manifest.model_dump_json())
    if ledger:
        write_ledger(directory, ledger)


@pytest.fixture
def gated(recipe: Recipe) -> Recipe:
    """The recipe with a rule that reads the mean of the group, and a staleness of two."""
    fields = recipe.model_dump(by_alias=True)
    relative = {
        "name": "relative", "on": "rollout", "value": "reward - group_reward", "credit_to": "self",
    }  # fmt: skip
    fields["reward"] = (*fields["reward"], relative)
    return Recipe.model_validate(fields | {"train": {"max_staleness": 2}})


def test_staleness_is_the_distance_along_parents_and_changes_no_other_advantage(
    scene: Any, store: Store, gated: Recipe, tmp_path: Path
) -> None:
    folder = tmp_path / "policies" / "sql"
    for number, parent in ((0, None), (1, 0), (2, 1), (3, 1), (4, 3), (5, 4)):  # v2: rolled back
        write_version(folder, number, parent, [])
    lineage = Lineage.read(folder, 5)
    assert lineage.versions == (5, 4, 3, 1, 0)
    sampled_by = (5, 4, 3, 3)
    add_group(scene, sampled_by)
    insert_otlp(store, scene.request())
    reference = build(store, gated, tmp_path / "reference", lineage=lineage)
    assert reference.manifest["trained"] == {"sql": 5}
    assert reference.counts["transitions"] == 8

    for attempt in scene.attempts:
        attempt.spans.clear()
    more = []
    for sample, version in ((4, 1), (5, 2), (6, 0)):
        rollout = scene.attempt(sample=sample)
        rollout.dispatch()
        rollout.llm(gateway={"ltrain.policy.version": version})
        rollout.evaluate(9.0)
        more.append(rollout.close().execution)
    insert_otlp(store, scene.request())
    built = build(store, gated, tmp_path / "built", lineage=lineage)
    reasons = built.drops.filter(stage="executions").select("id", "reason")
    assert dict(reasons.iter_rows()) == dict(
        zip(more, ("stale", "not_ancestor", "stale"), strict=True)
    )
    for table in ("transitions", "samples"):
        assert_frame_equal(built.table(table), reference.table(table))
    everything = build(store, gated, tmp_path / "everything")
    assert everything.manifest["trained"] == {}
    assert everything.counts["executions"] == 7 and everything.counts["transitions"] == 11


def test_a_rollout_that_the_lineage_was_trained_on_is_left_out(
    scene: Any, store: Store, recipe: Recipe, tmp_path: Path
) -> None:
    first = add_group(scene, (0, 0, 0, 0))
    second = add_group(scene, (0, 0, 0, 0), task="t2")
    insert_otlp(store, scene.request())
    folder = tmp_path / "policies" / "sql"
    write_version(folder, 0, None, [])
    write_version(folder, 1, 0, first[:2])
    write_version(folder, 2, 1, [first[2], first[0]])
    write_version(folder, 3, 1, second)  # a sibling of version 2
    (folder / "removed").mkdir()
    (folder / "v1").rename(folder / "removed" / "v1")
    lineage = Lineage.read(folder, 2)
    consumed = lineage.consumed(pl.Series(first + second))
    assert dict(consumed.iter_rows()) == {first[0]: 2, first[1]: 1, first[2]: 2}
    built = build(store, recipe, tmp_path / "out", lineage=lineage)
    dropped = built.drops.filter(reason="consumed")
    assert sorted(dropped["id"]) == sorted(f"{rollout}.1" for rollout in first[:3])
    assert "was trained on it already" in dropped["detail"][0]
    assert built.drops.filter(reason="alone")["id"].to_list() == [f"{first[3]}.1"]
    assert sorted(built.table("samples")["rollout_id"].unique()) == sorted(second)
    again = build(store, recipe, tmp_path / "again", lineage=Lineage.read(folder, 2, again=True))
    assert again.counts["transitions"] == 16


def test_a_damaged_version_of_the_lineage_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "policies" / "sql"
    write_version(folder, 0, None, [])
    write_version(folder, 1, 0, [])
    (folder / "v0" / "policy.json").write_text("{")
    with pytest.raises(BadPolicyFile, match=r"v0/policy\.json is not a valid policy\.json"):
        Lineage.read(folder, 1)
