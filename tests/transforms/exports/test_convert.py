"""The command `ltrain convert`, its files, and the libraries that read them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pytest
from tests.damage import damage_file, flip_a_bit
from tests.transforms.exports.conftest import Talks, question
from typer.testing import CliRunner

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.cli import app
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.errors import DamagedDataset, Unwritable
from ltrain_transforms.exports import FORMATS, REASONS, BadExport, ExportOptions, export_dataset

Built = Callable[..., Dataset]


@pytest.fixture
def dataset(talks: Talks, built: Built) -> Dataset:
    """Two rollouts of one task, one good and one bad, and one without a reward."""
    for sample, reward in enumerate((1.0, 0.0, None)):
        talk = talks("t1", sample, *question("1 + 1?"))
        talk.answers("3" if sample else "2")
        talk.ends(reward)
    return built()


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["convert", *map(str, arguments)])
    if done.exception:
        raise done.exception
    return done.output


def test_a_damaged_dataset_is_not_converted(dataset: Dataset, tmp_path: Path) -> None:
    damage_file(dataset.path / "calls" / "00000.parquet", flip_a_bit)
    with pytest.raises(DamagedDataset, match=r"is damaged: calls/00000\.parquet has"):
        run(dataset.path, "--to", "sft", "--out", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_the_command_prints_what_it_wrote_and_left_out(dataset: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "new" / "best.jsonl"
    output = run(dataset.path, "--to", "sft", "--min", "1", "--out", out)
    assert output.splitlines() == [
        f"{out}: 1 row of sft from dataset {dataset.id}",
        "left out: 1 below",
        "left out: 1 unrewarded",
        f"{out}.manifest.json lists what each row was made from.",
    ]
    (line,) = map(json.loads, out.read_text().splitlines())
    assert line["messages"][-1] == {"role": "assistant", "content": "2"}
    manifest = json.loads((tmp_path / "new" / "best.jsonl.manifest.json").read_text())
    assert (manifest["dataset"], manifest["options"]) == (dataset.id, {"min": 1.0, "pairs": 1})
    assert manifest["lineage"] == [
        dataset.table("calls").filter(output=_answer("2"))["call_id"].to_list()
    ]
    assert {one["reason"]: bool(one["detail"]) for one in manifest["left_out"]} == {
        "below": True,
        "unrewarded": True,
    }
    assert sorted(path.name for path in out.parent.iterdir()) == [
        out.name,
        f"{out.name}.manifest.json",
    ]
    again = run(dataset.path, "--to", "sft", "--min", "1", "--out", out, "--json")
    assert json.loads(again) == manifest


def _answer(text: str) -> str:
    part = {"type": "text", "content": text}
    return json.dumps([{"role": "assistant", "parts": [part], "finish_reason": "stop"}])


def test_every_format_is_written_and_read(dataset: Dataset, tmp_path: Path) -> None:
    for name, rows in (("tasks", 1), ("sft", 2), ("preferences", 1)):
        export_dataset(dataset, name, ExportOptions(), tmp_path / f"{name}.jsonl")
        path = str(tmp_path / f"{name}.jsonl")
        loaded: Any = datasets.load_dataset("json", data_files=path, cache_dir=str(tmp_path / "c"))
        assert len(loaded["train"]) == rows, name
    export_dataset(dataset, "verl", ExportOptions(), tmp_path / "verl.parquet")
    assert_readable(tmp_path / "verl.parquet", tmp_path, 1)
    others = {"openai", "trl", "sharegpt", "atif", "hf"}  # test_conversation_rows.py reads these
    assert FORMATS.keys() == {"tasks", "sft", "preferences", "verl", "rendered", *others}


def assert_readable(path: Path, tmp_path: Path, rows: int) -> None:
    """Check that Polars, pandas and Hugging Face's datasets read the same."""
    where = {"data_dir" if path.is_dir() else "data_files": str(path)}
    loaded: Any = datasets.load_dataset("parquet", cache_dir=str(tmp_path / "cache"), **where)
    frame = pl.read_parquet(path)
    assert frame.height == len(pd.read_parquet(path)) == rows
    assert loaded["train"].to_list() == frame.to_dicts()


def test_the_tables_of_a_dataset_are_read_by_all(scene: Any, built: Built, tmp_path: Path) -> None:
    for sample in range(2):
        rollout = scene.attempt("t1", sample)
        rollout.llm("write", (1, 2), (3,))
        rollout.llm("write", (1, 2, 3, 4), (5, 6))
        rollout.evaluate(float(sample))
        rollout.close()
    recipe = 'policy = [{ name = "sql" }]\nreward = [{ name = "a", evaluation = "reward" }]\n'
    dataset = built(f'source = {{ run = "demo" }}\n{recipe}')
    assert dataset.counts["samples"] == 2
    for name, rows in dataset.counts.items():
        if rows:  # Hugging Face's reader refuses a file without rows
            assert_readable(dataset.path / name, tmp_path, rows)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (
            ("--to", "sfd", "--out", "x.jsonl"),
            UnknownName,
            "Unknown format 'sfd'.*Did you mean 'sft'",
        ),
        (("--to", "sft", "--out", "x.csv"), BadExport, "sft is written as .jsonl, and --out is x"),
        (("--to", "verl", "--out", "x.jsonl"), BadExport, r"Name it \*.parquet"),
        (
            ("--to", "sft", "--min", "9", "--out", "x.jsonl"),
            BadExport,
            "has no row for sft. Left out: 2 below, 1 unrewarded",
        ),
    ],
)
def test_a_mistake_is_an_error_and_nothing_is_written(
    dataset: Dataset, arguments: tuple[str, ...], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        run(dataset.path, *arguments)
    assert not Path("x.jsonl").exists()


def test_every_reason_is_a_sentence() -> None:
    assert all(len(sentence.split()) > 3 for sentence in REASONS.values())


def test_a_folder_that_cannot_be_written_is_an_error(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unwritable, match=r"The sft file .*write to another folder"):
        run(dataset.path, "--to", "sft", "--out", tmp_path / "file" / "best.jsonl")
