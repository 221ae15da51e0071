"""The columns of rows that hold a value per response token, for all rows of a batch at once.

The response of a row is, call by call, the tokens between two responses (none before the first
call), which are masked, and the sampled tokens. Calls are in the order of their rows here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ltrain_transforms.samples.ragged import Integers, Ragged, concat_lists, lengths_to_offsets
from ltrain_transforms.samples.rows import Merges, Turns
from ltrain_transforms.tables import SAMPLES

Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """The position of every token of every response."""

    calls: Integers
    """The calls, by their indices in `Turns`."""
    row_offsets: Integers
    """Where each row's calls begin, and where the last row's end."""
    masked: Integers
    """Number of masked tokens before the sampled tokens of each call."""
    sampled: Integers
    """Number of sampled tokens of each call."""

    @classmethod
    def from_merges(cls, turns: Turns, merges: Merges) -> "Layout":
        calls = np.argsort(merges.openers, kind="stable")
        masked = np.where(merges.is_opener, 0, turns.prompts.lengths - merges.known)
        row_offsets = np.append(np.flatnonzero(merges.is_opener[calls]), len(calls))
        return cls(calls, row_offsets, masked[calls], turns.responses.lengths[calls])

    @property
    def ends(self) -> Integers:
        """Where each call's tokens end, over all rows."""
        return np.cumsum(self.masked + self.sampled)

    @property
    def lengths(self) -> Integers:
        """The length of each row's response."""
        return np.diff(np.append(0, self.ends)[self.row_offsets])

    @property
    def call_offsets(self) -> Integers:
        """Where in its row's response each call's sampled tokens begin."""
        row_starts = lengths_to_offsets(self.lengths)[:-1]
        return self.ends - self.sampled - np.repeat(row_starts, np.diff(self.row_offsets))

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Whether each token of all responses was sampled."""
        stretches = np.stack((self.masked, self.sampled), 1).ravel()
        return np.repeat(np.tile(np.array([False, True]), len(self.sampled)), stretches)

    def by_row(self, values: Numbers) -> Ragged:
        """Return a number of each call as lists, one a row."""
        return Ragged(values, self.row_offsets)


def token_columns(
    turns: Turns, merges: Merges, layout: Layout, logprobs: Ragged, credit: pl.DataFrame
) -> dict[str, pl.Series]:
    """Return the columns of `SAMPLES` that have a value per response token.

    Args:
        logprobs: of the responses of `turns`.
        credit: `advantage`, `reward` and `weight` of the calls of `turns`.
    """
    mask, calls = layout.mask, layout.calls
    joined = calls[~merges.is_opener[calls]]
    ids = _spread(mask, concat_lists(turns.responses, calls), np.uint32)
    ids[~mask] = concat_lists(turns.prompts, joined, merges.known[joined])
    by_call = {name: credit[name].to_numpy().astype(np.float32)[calls] for name in credit.columns}
    rewards = np.zeros(len(mask), np.float32)
    rewards[layout.ends - 1] = by_call["reward"]
    advantages = np.repeat(by_call["advantage"], layout.sampled)
    values = {
        "response_ids": ids,
        "response_mask": mask.astype(np.uint8),
        "rollout_logprobs": _spread(mask, concat_lists(logprobs, calls), np.float32),
        "advantages": _spread(mask, advantages, np.float32),
        "token_rewards": rewards,
        "loss_weight": _spread(mask, np.repeat(by_call["weight"], layout.sampled), np.float32),
    }
    offsets = lengths_to_offsets(layout.lengths)
    return {
        name: Ragged(array, offsets).to_series(SAMPLES.schema[name])
        for name, array in values.items()
    }


def _spread(mask: npt.NDArray[np.bool_], sampled: Numbers, dtype: type[np.generic]) -> Numbers:
    """Put the values of the sampled tokens where `mask` is true; masked tokens are 0."""
    spread = np.zeros(len(mask), dtype)
    spread[mask] = sampled
    return spread


def loss_weights(
    loss_weighting: str, sampled: Integers, lanes: Integers
) -> npt.NDArray[np.float64]:
    """Return the weight in the loss of each sampled token of each call.

    Args:
        loss_weighting: what has equal weight: `rollout`, `call` or `token`.
        sampled: number of sampled tokens of each call.
        lanes: where each execution and policy begins, and where the last ends.
    """
    if loss_weighting == "token":
        return np.ones(len(sampled))
    if loss_weighting == "call":
        return 1 / sampled
    offsets = lengths_to_offsets(sampled)
    return np.repeat(1 / np.diff(offsets[lanes]), np.diff(lanes))
