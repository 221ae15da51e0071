"""An export does not depend on the batches of a dataset, and its file is whole or absent."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.otlp import insert_otlp
from tests.transforms.exports.conftest import RECIPE, Talking, Talks, message, question

from ltrain_collector.store import Store
from ltrain_transforms.datasets import Dataset, build
from ltrain_transforms.exports import FORMATS, ExportOptions, export_dataset
from ltrain_transforms.recipe import Recipe

REWARDS = (1.0, 0.0, 0.5, None)


def add_rollouts(scene: Any, wave: int) -> None:
    """Add four rollouts of two tasks, with two turns and a sub-agent; one has no reward."""
    for task in ("t1", "t2"):
        for sample, reward in enumerate(REWARDS):
            talk = Talking(scene.attempt(task, sample, wave=wave)).hears(*question(task))
            talk.answers(f"{task} {sample}")
            talk.hears(message("user", "sure?")).answers(f"{wave}")
            talk.history = [message("user", "look it up")]
            talk.answers("found")
            talk.ends(reward)


@pytest.fixture
def cuts(scene: Any, store: Store, tmp_path: Path) -> list[Dataset]:
    """The same rows in one batch, in many, and in two builds with interleaved executions."""
    path = tmp_path / "helper.toml"
    path.write_text(RECIPE)
    recipe = Recipe.load(path)
    add_rollouts(scene, 0)
    insert_otlp(store, scene.request())
    build(store, recipe, tmp_path / "mixed", spans_a_batch=25)
    scene.attempts.clear()
    add_rollouts(scene, 1)
    insert_otlp(store, scene.request())
    mixed = build(store, recipe, tmp_path / "mixed", spans_a_batch=25, update=True)
    return [
        build(store, recipe, tmp_path / "whole"),
        build(store, recipe, tmp_path / "many", spans_a_batch=20),
        mixed,
    ]


def test_the_batches_of_a_dataset_change_no_byte(
    cuts: list[Dataset], tokenizer: Path, tmp_path: Path
) -> None:
    assert len({dataset.id for dataset in cuts}) == 1
    assert len(cuts[0].batches) == 1
    assert len(cuts[1].batches) > 3
    ids = [batch.table("executions")["execution_id"].to_list() for batch in cuts[2].batches]
    assert any(max(one) > min(other) for one, other in pairwise(ids)), "they are interleaved"
    for form, options, rows in (
        ("tasks", ExportOptions(), 2),
        ("sft", ExportOptions(best=2), 16),
        ("preferences", ExportOptions(pairs=2), 8),
        ("rendered", ExportOptions(tokenizer=tokenizer, min=0.5), 16),
        ("verl", ExportOptions(), 2),
    ):
        made = [tmp_path / f"{n}" / f"{form}{FORMATS[form][0]}" for n in range(len(cuts))]
        counts = [
            export_dataset(one, form, options, out)["rows"]
            for one, out in zip(cuts, made, strict=True)
        ]
        assert counts == [rows] * 3, form
        assert len({out.read_bytes() for out in made}) == 1, form
        whole, many, mixed = (out.with_name(f"{out.name}.manifest.json") for out in made)
        assert whole.read_bytes() == many.read_bytes(), form
        assert by_id(whole) == by_id(mixed), form
        if form == "sft":
            owner = dict(cuts[0].table("calls").select("call_id", "execution_id").iter_rows())
            executions = [owner[calls[0]] for calls in by_id(mixed)["lineage"]]
            assert executions == sorted(executions)
        if form == "verl":
            assert pl.read_parquet(made[0])["extra_info"].struct["index"].to_list() == [0, 1]


def by_id(manifest: Path) -> dict[str, Any]:
    """Read a manifest with `left_out` sorted by id, since a dataset has it in build order."""
    content: dict[str, Any] = json.loads(manifest.read_text())
    return {**content, "left_out": sorted(content["left_out"], key=lambda one: str(one["id"]))}


def test_ctrl_c_leaves_the_file_that_was_there(talks: Talks, built: Any, tmp_path: Path) -> None:
    for sample in range(3):
        talk = talks("t1", sample, *question("1 + 1?"))
        talk.answers(str(sample))
        talk.ends(float(sample))
    dataset, out = built(), tmp_path / "out" / "pairs.jsonl"
    export_dataset(dataset, "preferences", ExportOptions(), out)
    before = {path.name: path.read_bytes() for path in files(out)}
    assert sorted(before) == ["pairs.jsonl", "pairs.jsonl.manifest.json"]
    for during in ("read", "pairs", "write"):

        def stop(phase: str, done: int, total: int, during: str = during) -> None:
            assert done <= total
            if phase == during:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            export_dataset(dataset, "preferences", ExportOptions(pairs=9), out, stop)
        assert {path.name: path.read_bytes() for path in files(out)} == before
    assert json.loads(before["pairs.jsonl.manifest.json"])["rows"] == 1


def files(out: Path) -> Iterator[Path]:
    return out.parent.iterdir()
