"""What rows hold per token of their responses, for all rows of a batch at once.

A row's response is, call by call, what came between (nothing before its first call), masked, and
what was sampled. Calls are in the order of their rows everywhere here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ltrain_transforms.ragged import Ragged, Whole, rest, starts
from ltrain_transforms.rows import Merged, Turns
from ltrain_transforms.tables import SAMPLES

Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where every token of every response goes."""

    calls: Whole
    """The calls, by their numbers in `Turns`."""
    firsts: Whole
    """Where each row's calls begin, and where the last row's end."""
    between: Whole
    """How many tokens came before each call's own."""
    spoken: Whole
    """How many each call sampled."""

    @classmethod
    def of(cls, turns: Turns, found: Merged) -> "Layout":
        calls = np.argsort(found.opener, kind="stable")
        between = np.where(found.begins, 0, turns.prompts.lengths - found.known)
        firsts = np.append(np.flatnonzero(found.begins[calls]), len(calls))
        return cls(calls, firsts, between[calls], turns.responses.lengths[calls])

    @property
    def ends(self) -> Whole:
        """Say where each call's tokens end, over all rows."""
        return np.cumsum(self.between + self.spoken)

    @property
    def lengths(self) -> Whole:
        """Give the length of each row's response."""
        return np.diff(np.append(0, self.ends)[self.firsts])

    @property
    def offsets(self) -> Whole:
        """Say where in its row's response each call's sampled tokens begin."""
        return self.ends - self.spoken - np.repeat(starts(self.lengths)[:-1], np.diff(self.firsts))

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Say of each token of all responses whether it was sampled."""
        stretches = np.stack((self.between, self.spoken), 1).ravel()
        return np.repeat(np.tile(np.array([False, True]), len(self.spoken)), stretches)

    def by_row(self, of_call: Numbers) -> Ragged:
        """Put a number of each call into lists, one a row."""
        return Ragged(of_call, self.firsts)


def columns(
    turns: Turns, found: Merged, plan: Layout, logprobs: Ragged, credit: pl.DataFrame
) -> dict[str, pl.Series]:
    """Make the columns of `SAMPLES` that have a value per token.

    Args:
        logprobs: of the responses of `turns`.
        credit: `advantage`, `reward` and `weight` of the calls of `turns`.
    """
    mask, calls = plan.mask, plan.calls
    joined = calls[~found.begins[calls]]
    ids = _placed(mask, rest(turns.responses, calls), np.uint32)
    ids[~mask] = rest(turns.prompts, joined, found.known[joined])
    told = {name: credit[name].to_numpy().astype(np.float32)[calls] for name in credit.columns}
    rewards = np.zeros(len(mask), np.float32)
    rewards[plan.ends - 1] = told["reward"]
    values = {
        "response_ids": ids,
        "response_mask": mask.astype(np.uint8),
        "rollout_logprobs": _placed(mask, rest(logprobs, calls), np.float32),
        "advantages": _placed(mask, np.repeat(told["advantage"], plan.spoken), np.float32),
        "token_rewards": rewards,
        "loss_weight": _placed(mask, np.repeat(told["weight"], plan.spoken), np.float32),
    }
    ends = starts(plan.lengths)
    return {name: Ragged(them, ends).series(SAMPLES.schema[name]) for name, them in values.items()}


def _placed(mask: npt.NDArray[np.bool_], sampled: Numbers, dtype: type[np.generic]) -> Numbers:
    """Put the sampled tokens' numbers in their places; what came between is 0."""
    placed = np.zeros(len(mask), dtype)
    placed[mask] = sampled
    return placed


def weights(loss_weighting: str, spoken: Whole, lanes: Whole) -> npt.NDArray[np.float64]:
    """Give the weight in the loss of each sampled token of each call.

    Args:
        loss_weighting: what has equal weight: `rollout`, `call` or `token`.
        spoken: the tokens that each call sampled.
        lanes: where each execution and policy begins, and where the last ends.
    """
    if loss_weighting == "token":
        return np.ones(len(spoken))
    if loss_weighting == "call":
        return 1 / spoken
    ends = starts(spoken)
    return np.repeat(1 / np.diff(ends[lanes]), np.diff(lanes))
