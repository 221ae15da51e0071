"""Rendered rows: their old log-probabilities are those of the version that answered each call.

With d = learner - version for each trained token of a row, before an update, the row is left out of
the loss if the mean of k3 = exp(d) - 1 - d is above `train.drift_limit`: then the version that
answered is too far from the one in training. Where both are the same version, k3 is 0, and the
surprise says whether that version sampled the text at all:

    surprise = mean of (-log-probability - entropy), 0 in expectation for tokens that it sampled
"""

from collections.abc import Callable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ltrain_train.learner import row_values
from ltrain_train.learner.samples import call_lengths, flat_values
from ltrain_transforms.rendering import RENDERED

LogProbs = NDArray[np.float32]
Scored = tuple[pl.DataFrame, dict[str, float], tuple[str, ...]]
"""The rows with log-probabilities, the metrics and the warnings."""

SURPRISE = 0.5
"""Nats a token above which a run warns."""
MIN_TOKENS = 200
"""Fewest tokens for that warning: the mean over so many has a deviation of about 0.1."""

FAR = (
    "{} of {} rendered rows were left out of the loss: the version that answered them is too far "
    "from v{}, with a k3 above train.drift_limit = {:g}. Lower train.max_staleness, or render "
    "newer traces."
)
SURPRISING = (
    "The texts of the rendered rows are less likely under v{} than what it samples, by {:.2f} nats "
    "a token: another model, another chat template or other sampling settings than the traces say "
    "wrote them. Check `served_as` of [[policy]], and what serves the policy."
)


def score_rendered(
    rows: pl.DataFrame,
    old: LogProbs,
    entropy: LogProbs,
    infer: Callable[[pl.DataFrame, int], LogProbs],
    *,
    version: int,
    limit: float,
) -> Scored:
    """Return the rows with log-probabilities of rendered tokens, and without the mask of far rows.

    Args:
        old: log-probabilities of all response tokens under `version`, the learner's.
        entropy: the entropies of the same tokens.
        infer: returns the log-probabilities of the response tokens of rows under another version.
        limit: largest mean k3 of a row.
    """
    is_row = (rows["tokens"] == RENDERED).to_numpy()
    if not is_row.any():
        return rows, {}, ()
    lengths = rows["response_ids"].list.len().cast(pl.Int64).to_numpy()
    is_token = np.repeat(is_row, lengths)
    own, row = rows.filter(is_row), np.repeat(np.arange(is_row.sum()), lengths[is_row])
    versions = np.repeat(flat_values(own, "call_versions"), call_lengths(own))
    scored = _log_probs_of_versions(own, old[is_token], versions, infer, version)
    mask = flat_values(own, "response_mask") > 0
    difference = old[is_token] - scored
    far = _mean_k3(difference, mask, row)
    logprobs, kept = (flat_values(rows, n).copy() for n in ("rollout_logprobs", "response_mask"))
    logprobs[is_token], kept[is_token] = scored * mask, mask & (far <= limit)[row]
    metrics = {
        "rendered_rows": float(own.height),
        "rendered_k3": float(far.mean()),
        "rendered_difference": float(np.abs(difference[mask]).mean()) if mask.any() else 0.0,
        "rendered_left_out": float((far > limit).sum()),
    }
    is_own = mask & (versions == version)
    surprise = -float((old + entropy)[is_token][is_own].mean()) if is_own.any() else 0.0
    metrics["rendered_surprise"] = surprise
    warnings = []
    if (left_out := int(metrics["rendered_left_out"])) > 0:
        warnings.append(FAR.format(left_out, own.height, version, limit))
    if surprise > SURPRISE and is_own.sum() >= MIN_TOKENS:
        warnings.append(SURPRISING.format(version, surprise))
    columns = {"rollout_logprobs": logprobs, "response_mask": kept}
    return row_values.with_values(rows, **columns), metrics, tuple(warnings)


def _log_probs_of_versions(
    rows: pl.DataFrame,
    old: LogProbs,
    versions: NDArray[np.int32],
    infer: Callable[[pl.DataFrame, int], LogProbs],
    version: int,
) -> LogProbs:
    """Return the log-probability of each token under the version of its call."""
    scored, lengths = old.copy(), rows["response_ids"].list.len().to_numpy()
    for other in sorted(set(versions.tolist()) - {version}):
        with_other = rows["call_versions"].list.contains(other)
        values = np.zeros_like(old)
        values[np.repeat(with_other.to_numpy(), lengths)] = infer(rows.filter(with_other), other)
        scored = np.where(versions == other, values, scored)
    return scored


def _mean_k3(
    difference: LogProbs, mask: NDArray[np.bool_], row: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the mean k3 of the trained tokens of each row."""
    wide = difference.astype(np.float64)
    with np.errstate(over="ignore"):  # infinite: above every limit
        k3 = np.where(mask, np.exp(wide) - 1 - wide, 0.0)
    tokens = np.bincount(row, mask.astype(np.float64))
    mean: NDArray[np.float64] = np.bincount(row, k3) / np.maximum(tokens, 1)
    return mean
