"""Rows of a batch as datums of the Tinker API, and the values that come back.

A datum of n tokens has n - 1 inputs and targets: position i predicts token i + 1. Its arrays are
zero over the prompt. Weights are 1 for trained tokens, so that a server that divides by their sum
divides by their number.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from tinker import types

from ltrain_train.errors import BadSamples
from ltrain_train.learner.row_values import split_values
from ltrain_train.learner.samples import flat_token_ids, flat_values

Values = NDArray[np.float64]


def make_datum(ids: list[int], prompt: int, **values: NDArray[Any]) -> types.Datum:
    """Return the datum of one row.

    Args:
        ids: of prompt and response.
        prompt: the number of the prompt's tokens.
        values: of the response tokens, by the API's name: `weights`, `logprobs`, `advantages`.
    """
    zeros = np.zeros(prompt - 1, np.float32)
    inputs: dict[str, Any] = {"target_tokens": np.asarray(ids[1:], np.int64)}
    for name, value in values.items():
        inputs[name] = np.concatenate([zeros, value.astype(np.float32)])
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)


def make_datums(rows: pl.DataFrame, **values: NDArray[Any]) -> list[types.Datum]:
    """Return the datums of rows: weights, and other values of all response tokens by name."""
    values = {"weights": flat_values(rows, "response_mask"), **values}
    prompts = rows["prompt_ids"].list.len().to_list()
    parts = zip(*(split_values(rows, each) for each in values.values()), strict=True)
    return [
        make_datum(ids, prompt, **dict(zip(values, part, strict=True)))
        for ids, prompt, part in zip(_row_ids(rows), prompts, parts, strict=True)
    ]


def read_log_probs(outputs: Sequence[Any], rows: pl.DataFrame) -> NDArray[np.float32]:
    """Return the log-probabilities of all response tokens from the outputs of a request."""
    prompts = rows["prompt_ids"].list.len().to_list()
    parts = [
        np.asarray(output["logprobs"].to_numpy(), np.float32)[prompt - 1 :]
        for output, prompt in zip(outputs, prompts, strict=True)
    ]
    return np.concatenate(parts)


def require_plain(rows: pl.DataFrame, samples: object) -> None:
    """Check that the API computes the probabilities of rows as the policy server did.

    Raises:
        BadSamples: when a row was sampled at another temperature than 1, or under a grammar.
    """
    if (warm := rows.filter(pl.col("temperature") != 1)).height:
        raise BadSamples(
            f"{samples}, sample {warm['sample_id'][0]}: its temperature is "
            f"{warm['temperature'][0]:g}, and the Tinker API trains at 1 only. Let agents sample "
            "at temperature 1."
        )
    constrained = pl.col("call_constraints").list.drop_nulls().list.len() > 0
    if (bound := rows.filter(constrained)).height:
        raise BadSamples(
            f"{samples}, sample {bound['sample_id'][0]}: the server's grammar limited its tokens, "
            'and the Tinker API has no masks of tokens. Set train.constrained = "relaxed".'
        )


def _row_ids(rows: pl.DataFrame) -> Iterator[list[int]]:
    """Yield the token ids of each row, prompt and response."""
    lengths = rows.select(pl.sum_horizontal(pl.col("prompt_ids", "response_ids").list.len()))
    ends = lengths.to_series().cast(pl.Int64).cum_sum().to_list()
    ids = flat_token_ids(rows).tolist()
    for start, end in pairwise([0, *ends]):
        yield ids[start:end]
