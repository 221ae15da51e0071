"""The drift of a wave: how far the learner's log-probabilities are from those of the server.

Both are of the same sampled tokens under the same policy version, so only rounding, kernels and
mistakes can make them differ: weights that were rounded for the server, another temperature, a
server with other weights. With d = learner - server for each trained token and r = exp(d):

    mean = E[d]    k3 = E[r - 1 - d]    effective sample size = E[r]^2 / E[r^2]

k3 estimates the KL divergence of the server's policy from the learner's; it is never negative.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ltrain_train.errors import PolicyDrift
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.samples import flat_values


@dataclass(frozen=True, slots=True)
class Drift:
    """The drift over some tokens."""

    tokens: int
    """Number of trained tokens that the version itself sampled."""
    mean: float = 0.0
    k3: float = 0.0
    effective_sample_size: float = 1.0
    """As a share of the tokens."""
    outliers: float = 0.0
    """Share of the tokens whose difference is above `train.drift_outlier`."""

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name; only the number of tokens if there are none."""
        if not self.tokens:
            return {"drift_tokens": 0}
        return {
            "drift_tokens": self.tokens,
            "drift_mean": self.mean,
            "drift_k3": self.k3,
            "drift_ess": self.effective_sample_size,
            "drift_outliers": self.outliers,
        }


def measure_drift(
    rows: pl.DataFrame, log_probs: NDArray[np.floating], *, version: int, outlier: float
) -> Drift:
    """Return the drift over the sampled rows in which `version`, the learner's, sampled every call.

    `log_probs` are the learner's, of all response tokens, row after row.
    """
    is_version = pl.element().eq_missing(version)
    is_own = rows["call_versions"].list.eval(is_version).list.all().fill_null(False)
    is_own &= rows["tokens"] == "sampled"  # the others have no log-probabilities of a server
    of_token = np.repeat(is_own.to_numpy(), rows["response_ids"].list.len().to_numpy())
    trained = of_token & (flat_values(rows, "response_mask") > 0)
    server = flat_values(rows, "rollout_logprobs").astype(np.float64)
    difference = log_probs.astype(np.float64)[trained] - server[trained]
    if not difference.size:
        return Drift(0)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite: a drift above every limit
        ratio = np.exp(difference)
        return Drift(
            tokens=difference.size,
            mean=float(difference.mean()),
            k3=float((ratio - 1 - difference).mean()),
            effective_sample_size=float(ratio.mean() ** 2 / (ratio**2).mean()),
            outliers=float((np.abs(difference) > outlier).mean()),
        )


def check_drift(drift: Drift, objective: Objective, version: int) -> str | None:
    """Return a warning if the drift is above `objective.drift_warning`, else None."""
    if drift.k3 <= objective.drift_warning:
        return None
    found = (
        f"The log-probabilities of learner and server differ for the {drift.tokens} tokens that "
        f"v{version} sampled: k3 {drift.k3:.3g}, mean {drift.mean:.3g}, effective sample size "
        f"{drift.effective_sample_size:.0%}, {drift.outliers:.1%} of the tokens by more than "
        f"{objective.drift_outlier:g}."
    )
    if drift.k3 <= objective.drift_limit:
        return f"{found} train.drift_warning is {objective.drift_warning:g}."
    raise PolicyDrift(
        f"{found} That is above train.drift_limit = {objective.drift_limit:g}, so nothing was "
        f"trained or published. Check that the server has loaded v{version} with `ltrain serve`'s "
        "settings (log-probabilities after the temperature, the recipe's dtype), or raise the "
        "limit."
    )
