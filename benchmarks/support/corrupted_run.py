"""Runs `ltrain` with rows that are corrupted on their way to the learner.

`python -m benchmarks.support.corrupted_run KIND ARGUMENTS...`
"""

import sys
from dataclasses import replace
from pathlib import Path

import polars as pl

from ltrain.cli import main
from ltrain_train.loop import update
from ltrain_train.loop.training_rows import TrainingRows, select_rows
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.policy_lineage import Lineage


def shift_ids(rows: pl.DataFrame) -> pl.DataFrame:
    """Replace the tokens of each response, which is one token, by those of the next row."""
    ids = pl.col("response_ids")
    return rows.with_columns(ids.shift(-1).fill_null(ids.first()))


def swap_credit(rows: pl.DataFrame) -> pl.DataFrame:
    """Exchange the advantages of the calls of each rollout: each gets that of the next one."""
    advantages = pl.col("advantages")
    following = advantages.shift(-1).fill_null(advantages.first()).over("rollout_id")
    return rows.sort("rollout_id", "sample_id").with_columns(advantages=following)


CORRUPTIONS = {"ids shifted": shift_ids, "credit swapped": swap_credit}


def corrupt(kind: str) -> None:
    """Corrupt the rows of every update of this process."""

    def select_corrupted(dataset: Dataset, lineage: Lineage, max_staleness: int) -> TrainingRows:
        selected = select_rows(dataset, lineage, max_staleness)
        path = Path(f"{selected.path}.corrupted.parquet")
        CORRUPTIONS[kind](pl.read_parquet(selected.path)).write_parquet(path)
        return replace(selected, path=path)

    vars(update)["select_rows"] = select_corrupted


if __name__ == "__main__":
    corrupt(sys.argv.pop(1))
    main()
