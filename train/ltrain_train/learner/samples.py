"""The rows of one update: read from a `samples` table, checked, and split into optimizer steps.

* Rows are a frame of the columns `COLUMNS`; their tokens stay in Arrow buffers.
* A row that cannot be trained on is an error that names it; no row is repaired.
* Every row is in exactly one optimizer step, with its whole group.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ltrain_instrument.quantity import quantity
from ltrain_train.errors import BadSamples
from ltrain_train.learner.prefix_tree import Packs, pack_rows
from ltrain_transforms.rendering import RENDERED
from ltrain_transforms.tables import SAMPLES

COLUMNS = (
    "sample_id",
    "tokens",
    "prompt_ids",
    "response_ids",
    "response_mask",
    "rollout_logprobs",
    "advantages",
    "loss_weight",
    "temperature",
    "call_versions",
    "call_offsets",
    "call_constraints",
    "group_id",
    "rollout_id",
)
CRITIC_COLUMNS = ("execution_id", "policy", "token_rewards", "call_positions")
"""Further columns, which a critic reads."""
Kind = Literal["rl", "sft"]
"""The loss of the rows: a policy loss, or the cross-entropy of their tokens."""
PER_TOKEN = ("response_mask", "rollout_logprobs", "advantages", "loss_weight")


def read_rows(
    path: Path,
    *,
    vocab_size: int,
    kind: Kind = "rl",
    critic: bool = False,
    versions: Collection[int] = (),
) -> pl.DataFrame:
    """Read and check the rows of a samples table.

    Args:
        path: parquet file or folder.
        vocab_size: number of token ids of the model.
        kind: the loss of the rows. `sft` needs no sampled tokens; the columns that it does
            not read get neutral values.
        critic: also read the columns of a critic.
        versions: the versions whose weights can compute the log-probabilities of rendered rows.

    Raises:
        BadSamples: when the table cannot be read, or the loss cannot use a row.
    """
    frame = _read_frame(path, COLUMNS + CRITIC_COLUMNS * critic)
    if kind == "sft":
        zeros = pl.col("loss_weight") * 0
        frame = frame.with_columns(
            pl.lit("sampled").alias("tokens"),
            pl.lit(None, pl.List(pl.String)).alias("call_constraints"),
            zeros.alias("rollout_logprobs"),
            zeros.alias("advantages"),
            pl.lit(1.0, pl.Float32).alias("temperature"),
        )
    unconstrained = pl.lit(None, pl.String).repeat_by(pl.col("call_offsets").list.len())
    frame = frame.with_columns(pl.coalesce("call_constraints", unconstrained))
    _check_frame(frame, path, vocab_size, versions)
    return frame


def split_into_steps(rows: pl.DataFrame, steps: int, seed: str) -> Iterator[pl.DataFrame]:
    """Yield `rows` in at most `steps` parts of whole groups, shuffled and of similar size.

    The advantages of a group are relative to each other, and its rows share their prompt. A row
    without a group goes with its rollout. There are fewer parts if there are fewer groups.
    """
    names = rows.select(pl.coalesce("group_id", "rollout_id", "sample_id"))["group_id"].to_list()
    groups: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        groups.setdefault(name, []).append(number)
    order = sorted(groups)
    Random(seed).shuffle(order)
    order.sort(key=lambda name: -len(groups[name]))  # the largest first; equal ones stay shuffled
    parts: list[list[int]] = [[] for _ in range(min(steps, len(groups)))]
    for name in order:
        min(parts, key=len).extend(groups[name])
    for part in parts:
        yield rows[part]


def pack_step(rows: pl.DataFrame, *, ranks: int, tokens: int, shared: bool) -> Packs:
    """Group the rows of an optimizer step into micro-batches of at most `tokens` tokens.

    Only tokens that predict another one count, so all but the last of each row.

    Args:
        ranks: the processes that compute equally many micro-batches each.
        tokens: the limit; a longer row is a micro-batch by itself.
        shared: whether the model computes a common prefix of rows once.
    """
    lengths = rows.select(pl.sum_horizontal(pl.col("prompt_ids", "response_ids").list.len()))
    ends = lengths.to_series().cast(pl.Int64).cum_sum().to_list()
    ids = flat_token_ids(rows)
    return pack_rows(
        [ids[start : end - 1] for start, end in pairwise([0, *ends])],
        rows["temperature"].to_list(),
        max_tokens=tokens,
        ranks=ranks,
        shared=shared,
    )


def flat_token_ids(rows: pl.DataFrame) -> NDArray[np.uint32]:
    """Return the token ids of all rows, prompt and response of each."""
    ids = rows.select(pl.concat_list("prompt_ids", "response_ids").explode())
    return ids.to_series().to_numpy()


def flat_values(rows: pl.DataFrame, column: str) -> NDArray[Any]:
    """Return the values of all lists of a column, one after the other."""
    return rows[column].explode().to_numpy()


def call_lengths(rows: pl.DataFrame) -> list[int]:
    """Return the response tokens from the start of each call to the next one or the row's end."""
    lengths = rows["response_ids"].list.len().cast(pl.Int64).to_numpy()
    ends = lengths.cumsum()
    bounds = np.sort(np.concatenate([[0], ends, later_calls(rows, ends - lengths)]))
    result: list[int] = np.diff(bounds).tolist()
    return result


def later_calls(rows: pl.DataFrame, responses: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the calls after the first one of each row begin.

    `responses` are the positions at which the response of each row begins.
    """
    later = rows["call_offsets"].list.slice(1)
    counts = later.list.len().fill_null(0).to_numpy()
    offsets: NDArray[np.int64] = later.explode(empty_as_null=False).to_numpy()
    return np.repeat(responses, counts) + offsets


def _read_frame(path: Path, columns: tuple[str, ...]) -> pl.DataFrame:
    try:
        table = pl.scan_parquet(path)
        missing = [name for name in columns if name not in table.collect_schema()]
        frame = pl.DataFrame() if missing else table.select(columns).collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise BadSamples(
            f"Cannot read {path} as parquet: {error}. "
            "Use the samples of a dataset that `ltrain build` wrote."
        ) from error
    if missing:
        raise BadSamples(
            f"{path} has no column {', '.join(missing)}. "
            "Use the samples of a dataset that `ltrain build` wrote."
        )
    try:
        return frame.select(pl.col(name).cast(SAMPLES.schema[name]) for name in columns)
    except pl.exceptions.PolarsError as error:
        raise BadSamples(
            f"{path}: a column has the wrong type: {error}. "
            "Use the samples of a dataset that `ltrain build` wrote."
        ) from error


def _check_frame(
    frame: pl.DataFrame, path: Path, vocab_size: int, versions: Collection[int]
) -> None:
    """Raise `BadSamples` for the first row that the loss cannot use."""
    length, calls = pl.col("response_ids").list.len(), pl.col("call_offsets").list.len()
    per_token: tuple[str, ...] = PER_TOKEN
    numbers: tuple[str, ...] = ("rollout_logprobs", "advantages", "loss_weight")
    is_unordered = pl.lit(False)
    if "token_rewards" in frame.columns:  # a critic reads them
        per_token, numbers = (*per_token, "token_rewards"), (*numbers, "token_rewards")
        is_unordered = pl.col("call_positions").list.len() != calls
    ragged = pl.any_horizontal(pl.col(name).list.len() != length for name in per_token)
    finite = _all_elements(numbers, pl.element().is_finite().fill_null(False))
    integers = ("prompt_ids", "response_ids", "response_mask")
    complete = _all_elements(integers, pl.element().is_not_null())
    highest = pl.max_horizontal(pl.col("prompt_ids", "response_ids").list.max())
    negative = (pl.col("loss_weight").list.min() < 0).fill_null(False)
    temperature = pl.col("temperature")
    checks = (
        (
            (pl.col("tokens") != "sampled") & ~_has_versions(versions),
            "its tokens are rendered, not sampled: an RL loss needs the server's token "
            "ids and log-probabilities, or the weights of the version that answered. Run the tasks "
            "with the policy",
        ),
        (pl.col("prompt_ids").list.len() == 0, "it has no prompt"),
        (length == 0, "it has no response"),
        (ragged, f"{', '.join(per_token)} must be as long as response_ids"),
        (
            pl.col("call_constraints").list.len() != calls,
            "call_constraints must be as long as call_offsets",
        ),
        (is_unordered, "call_positions must be as long as call_offsets"),
        (~complete, f"{', '.join(integers)} must have no null"),
        (~finite, f"{', '.join(numbers)} must be finite"),
        (negative, "a loss_weight is below 0"),
        (
            temperature.is_null() | ~(temperature > 0),
            "its temperature must be above 0: a greedy sample has no probability to learn from",
        ),
        (highest >= vocab_size, f"a token id is not below {vocab_size}, the model's vocabulary"),
    )
    for is_bad, reason in checks:
        bad_rows = frame.filter(is_bad.fill_null(True))
        if bad_rows.height:
            more = (
                f" and {quantity(bad_rows.height - 1, 'more row')}" if bad_rows.height > 1 else ""
            )
            raise BadSamples(f"{path}, sample {bad_rows['sample_id'][0]}{more}: {reason}.")


def _has_versions(versions: Collection[int]) -> pl.Expr:
    """Return whether a row is rendered, and one of `versions` answered each of its calls."""
    is_known = pl.element().is_in(list(versions)).fill_null(False)
    known = pl.col("call_versions").list.eval(is_known).list.all()
    return (pl.col("tokens") == RENDERED) & known.fill_null(False)


def _all_elements(names: Iterable[str], holds: pl.Expr) -> pl.Expr:
    """Return whether `holds` is true of every element of the lists in the columns `names`."""
    return pl.all_horizontal(pl.col(name).list.eval(holds).list.all() for name in names)
