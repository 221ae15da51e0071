"""However a dataset was cut, a conversion of it is the same file, and it appears whole or not."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.transforms.exports.conftest import RECIPE, Talking, question, told

from ltrain_collector.store import Store
from ltrain_transforms.build import build
from ltrain_transforms.dataset import Dataset
from ltrain_transforms.exports import FORMATS, Options, write
from ltrain_transforms.recipe import Recipe

REWARDS = (1.0, 0.0, 0.5, None)


def say(scene: Any, wave: int) -> None:
    """Four rollouts of each of four tasks: two turns, a sub-agent, one of them not judged."""
    for task in ("t1", "t2", "t3", "t4"):
        for sample, reward in enumerate(REWARDS):
            talk = Talking(scene.attempt(task, sample, wave=wave)).hears(*question(task))
            talk.answers(f"{task} {sample}")
            talk.hears(told("user", "sure?")).answers(f"{wave}")
            talk.history = [told("user", "look it up")]
            talk.answers("found")
            talk.ends(reward)


@pytest.fixture
def cuts(scene: Any, store: Store, tmp_path: Path) -> list[Dataset]:
    """The same rows in one batch, in many, and in two builds whose executions lie mixed."""
    path = tmp_path / "helper.toml"
    path.write_text(RECIPE)
    recipe = Recipe.load(path)
    say(scene, 0)
    store.insert_otlp(scene.request())
    build(store, recipe, tmp_path / "mixed", spans_a_batch=25)
    scene.attempts.clear()
    say(scene, 1)
    store.insert_otlp(scene.request())
    mixed = build(store, recipe, tmp_path / "mixed", spans_a_batch=25, update=True)
    return [
        build(store, recipe, tmp_path / "whole"),
        build(store, recipe, tmp_path / "many", spans_a_batch=1),
        mixed,
    ]


def test_how_a_dataset_is_cut_changes_no_byte(
    cuts: list[Dataset], tokenizer: Path, tmp_path: Path
) -> None:
    assert len({dataset.id for dataset in cuts}) == 1
    assert [len(dataset.batches) for dataset in cuts][:2] == [1, 32]
    ids = [batch.table("executions")["execution_id"].to_list() for batch in cuts[2].batches]
    assert any(max(one) > min(other) for one, other in pairwise(ids)), "they lie mixed"
    for form, options, rows in (
        ("tasks", Options(), 4),
        ("sft", Options(best=2), 32),
        ("preferences", Options(pairs=2), 16),
        ("rendered", Options(tokenizer=tokenizer, at_least=0.5), 32),
        ("verl", Options(), 4),
    ):
        made = [tmp_path / f"{n}" / f"{form}{FORMATS[form][0]}" for n in range(len(cuts))]
        counts = [
            write(one, form, options, out)["rows"] for one, out in zip(cuts, made, strict=True)
        ]
        assert counts == [rows] * 3, form
        assert len({out.read_bytes() for out in made}) == 1, form
        whole, many, mixed = (out.with_name(f"{out.name}.manifest.json") for out in made)
        assert whole.read_bytes() == many.read_bytes(), form
        assert by_id(whole) == by_id(mixed), form
        if form == "verl":
            assert pl.read_parquet(made[0])["extra_info"].struct["index"].to_list() == [0, 1, 2, 3]


def by_id(manifest: Path) -> dict[str, Any]:
    """A dataset has what it left out in the order of its builds."""
    told: dict[str, Any] = json.loads(manifest.read_text())
    return {**told, "left_out": sorted(told["left_out"], key=lambda one: str(one["id"]))}


def test_rows_lie_in_the_order_of_the_executions(cuts: list[Dataset], tmp_path: Path) -> None:
    out = tmp_path / "all.jsonl"
    lineage = write(cuts[2], "sft", Options(), out)["lineage"]
    owner = dict(cuts[2].table("calls").select("call_id", "execution_id").iter_rows())
    executions = [owner[calls[0]] for calls in lineage]
    assert executions == sorted(executions)
    assert len(out.read_text().splitlines()) == len(lineage) == 48


@pytest.mark.parametrize("during", ["read", "pairs", "write"])
def test_ctrl_c_leaves_the_file_that_was_there(
    cuts: list[Dataset], tmp_path: Path, during: str
) -> None:
    out = tmp_path / "out" / "pairs.jsonl"
    write(cuts[0], "preferences", Options(), out)
    before = {path.name: path.read_bytes() for path in files(out)}
    assert sorted(before) == ["pairs.jsonl", "pairs.jsonl.manifest.json"]

    def stop(phase: str, done: int, total: int) -> None:
        assert done <= total
        if (phase, done) == (during, 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(cuts[1], "preferences", Options(pairs=9), out, stop)
    assert {path.name: path.read_bytes() for path in files(out)} == before
    assert json.loads(before["pairs.jsonl.manifest.json"])["rows"] == 8


def files(out: Path) -> Iterator[Path]:
    return out.parent.iterdir()
