"""Runs `ltrain` with rows that are corrupted on their way to the learner.

`python -m benchmarks.support.corrupted_run KIND ARGUMENTS...`
"""

import sys
from pathlib import Path
from typing import Any

import polars as pl

from ltrain.cli import main
from ltrain_train.learner import LearnerClient, StepReport


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
    step = LearnerClient.step

    def step_on_corrupted(
        learner: LearnerClient, samples: Path, *more: Any, **named: Any
    ) -> StepReport:
        path = Path(f"{samples}.corrupted.parquet")
        CORRUPTIONS[kind](pl.read_parquet(samples)).write_parquet(path)
        return step(learner, path, *more, **named)

    setattr(LearnerClient, "step", step_on_corrupted)  # noqa: B010 - a method of a class


if __name__ == "__main__":
    corrupt(sys.argv.pop(1))
    main()
