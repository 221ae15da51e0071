"""Values of the response tokens of rows, as flat arrays over all rows, and their weights."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from ltrain_train.errors import BadSamples
from ltrain_train.learner.samples import flat_values, split_into_steps

OLD = "old_log_probs"
"""A further column of rows: the learner's log-probabilities before the update. They replace the
sampled ones."""
CORRECTION = "rollout_is_weights"
"""A further column, with verl's name: the capped ratio of `OLD` to the sampled ones, which is a
factor of the loss."""
REFERENCE = "reference_log_probs"
"""A further column: the log-probabilities under the reference."""


def split_weighted(rows: pl.DataFrame, steps: int, seed: str, samples: Path) -> list[pl.DataFrame]:
    """Return the rows of each optimizer step.

    Args:
        samples: the table of the rows, for the error.

    Raises:
        BadSamples: when an optimizer step would have no token in the loss.
    """
    parts = list(split_into_steps(rows, steps, seed))
    if any(total_weight(part) == 0 for part in parts):
        raise BadSamples(
            f"{samples}: an optimizer step would have no token with a positive loss_weight. "
            "Lower train.steps_per_wave, or build a dataset with more weighted tokens."
        )
    return parts


def total_weight(rows: pl.DataFrame) -> float:
    """Return the sum of the weights of the trained tokens."""
    return float(trained_weights(rows).sum())


def weighted_mean(rows: pl.DataFrame, values: NDArray[Any]) -> float:
    """Return the mean of a value of all response tokens, weighted as the loss is."""
    weights = trained_weights(rows)
    return float(np.dot(weights, values) / weights.sum())


def trained_weights(rows: pl.DataFrame) -> NDArray[np.float64]:
    """Return the weights of all response tokens, 0 for those that are not trained."""
    trained = flat_values(rows, "response_mask")
    weights: NDArray[np.float64] = flat_values(rows, "loss_weight").astype(np.float64) * trained
    return weights


def count_tokens(rows: pl.DataFrame) -> int:
    """Return the number of tokens, prompts included."""
    return sum(int(rows[name].list.len().sum()) for name in ("prompt_ids", "response_ids"))


def count_trained(rows: pl.DataFrame) -> int:
    """Return the number of tokens in the loss."""
    return int(flat_values(rows, "response_mask").sum())


def with_values(rows: pl.DataFrame, **columns: NDArray[Any]) -> pl.DataFrame:
    """Set columns of values, each a flat array over all response tokens."""
    offsets = np.concatenate([[0], rows["response_ids"].list.len().cast(pl.Int64).cum_sum()])
    lists = {
        name: pa.LargeListArray.from_arrays(offsets, values) for name, values in columns.items()
    }
    return rows.with_columns(pl.Series(name, values) for name, values in lists.items())


def split_values(rows: pl.DataFrame, values: NDArray[Any]) -> Iterable[NDArray[Any]]:
    """Return the values of each row's response tokens."""
    ends = rows["response_ids"].list.len().cast(pl.Int64).cum_sum().to_numpy()
    return np.split(values, ends[:-1])
