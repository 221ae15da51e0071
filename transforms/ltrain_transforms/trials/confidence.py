"""A confidence sequence of the difference of two arms, which may be looked at at any time.

These are the asymptotic confidence sequences of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas
(2021), "Time-uniform central limit theory and asymptotic confidence sequences", arXiv:2103.06476.
With t units and the variance s² of a unit's influence on the estimate, the one-sided bounds at
level alpha are

    difference ± s sqrt(2 (t r² + 1) / (t² r²) · log(1 + sqrt(t r² + 1) / (2 alpha)))

at all t together (appendix on one-sided bounds). The influence of a unit of an arm with share p is
(y - mean of its arm) / p, so that s² = var1 / p + var0 / (1 - p) (section 3, without covariates).

* A unit is what was assigned as a whole, such as a conversation. Its values are averaged over all
  values of its arm, as a ratio of sums whose variance is that of the linearised units.
* Both arms have the variance of the wilder one. An arm that is small may not have seen a failure
  that is rare, and would be sure of itself without a reason.
* The arguments may be arrays, one number for each of several trials.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

HORIZON = 2000
"""Units at which the bounds are tightest, unless another number is named."""
MIN_UNITS = 50
"""Units of each arm below which a mean is not normal enough: the bounds are infinite."""

Number = Any
"""A float, or an array of them."""


@dataclass(frozen=True, slots=True)
class ArmTotals:
    """The sums over the units of an arm; s is the sum of a unit's values, n is their number."""

    units: Number
    values: Number
    """The sum of n."""
    total: Number
    """The sum of s."""
    values_squared: Number
    """The sum of n²."""
    total_squared: Number
    """The sum of s²."""
    product: Number
    """The sum of n s."""

    @property
    def mean(self) -> Number:
        """The mean of the arm's values; NaN without values."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.divide(self.total, self.values)

    @property
    def variance(self) -> Number:
        """The variance of a unit's influence on the mean of its arm."""
        mean = self.mean
        residuals = self.total_squared - 2 * mean * self.product + mean * mean * self.values_squared
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.divide(self.units, self.values)
            return np.maximum(residuals, 0.0) / np.maximum(self.units - 1, 1) * scale * scale


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of the candidate minus that of the current version, with its bounds."""

    mean: Number
    lower: Number
    """The true difference is above it at all times, with probability 1 - alpha."""
    upper: Number
    """The true difference is below it at all times, with probability 1 - alpha."""


def compare(
    candidate: ArmTotals, current: ArmTotals, alpha: float, horizon: int = HORIZON
) -> Difference:
    """Return the difference of two arms.

    Args:
        alpha: the probability with which a bound may fail at some time.
        horizon: the number of units of both arms at which the bounds are tightest.
    """
    units = np.add(candidate.units, current.units)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.divide(candidate.units, units)
        larger = np.maximum(candidate.variance, current.variance)
        variance = larger / share + larger / (1 - share)
    width = np.sqrt(variance) * _boundary(units, alpha, horizon)
    is_small = np.minimum(candidate.units, current.units) < MIN_UNITS
    is_unknown = is_small | ~np.isfinite(width)
    mean = candidate.mean - current.mean
    lower = np.where(is_unknown, -np.inf, mean - width)
    return Difference(mean, lower, np.where(is_unknown, np.inf, mean + width))


def _boundary(units: Number, alpha: float, horizon: int) -> Number:
    """Return the one-sided half-width for a variance of 1."""
    rate = _tightest(alpha) / horizon
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = units * rate + 1
        level = np.log1p(np.sqrt(scaled) / (2 * alpha))
        return np.sqrt(2 * scaled / (units * units * rate) * level)


def _tightest(alpha: float) -> float:
    """Return t r² at which the one-sided bound is tightest (their equation for r, with 2 alpha)."""
    log = -2 * np.log(2 * alpha)
    return float(log + np.log(log + 1))
