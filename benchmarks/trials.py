"""Error rates and sample sizes of the trial of a candidate, by simulation with a look at each unit.

A/A: both versions have the same rate of success. A/B: the candidate is better by 0.05. Rates are
0/1 rewards; with `--turns` a unit has several of them, with a rate of its own. `--picture` draws
the share of the trials with one unit in two that are decided, by units.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
from benchmarks.support.curve_svg import draw_variants
from numpy.typing import NDArray

from ltrain_transforms.trials import ArmTotals, compare

EFFECT, ALPHA, POWER = 0.05, 0.05, 0.8
CHUNK = 250
"""Trials that are simulated at a time."""
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Plan:
    """One simulation."""

    trials: int
    units: int
    """Of a trial, at most."""
    base: float
    effect: float
    share: float
    turns: int
    horizon: int
    seed: int = 0


def fixed_units(base: float, share: float) -> int:
    """Return the units of a fixed one-sided z-test with the same level and power."""
    normal, better = NormalDist(), base + EFFECT
    spread = better * (1 - better) / share + base * (1 - base) / (1 - share)
    return round((normal.inv_cdf(1 - ALPHA) + normal.inv_cdf(POWER)) ** 2 * spread / EFFECT**2)


def first_crossings(plan: Plan) -> Iterator[tuple[Array, Array]]:
    """Yield the units at which the lower bound exceeds 0, and the upper falls below; inf: never."""
    rng = np.random.default_rng(plan.seed)
    for begin in range(0, plan.trials, CHUNK):
        shape = (min(CHUNK, plan.trials - begin), plan.units)
        is_candidate = rng.random(shape) < plan.share
        rates = plan.base + plan.effect * is_candidate
        if plan.turns == 1:
            counts, successes = np.ones(shape), (rng.random(shape) < rates).astype(float)
        else:
            counts = rng.integers(1, 2 * plan.turns, shape).astype(float)
            own = np.clip(rates + rng.normal(0, 0.2, shape), 0, 1)
            successes = rng.binomial(counts.astype(int), own).astype(float)
        arms = [_totals(arm, counts, successes) for arm in (is_candidate, ~is_candidate)]
        found = compare(arms[0], arms[1], ALPHA, plan.horizon)
        yield _first(found.lower > 0), _first(found.upper < 0)


def _totals(chosen: NDArray[np.bool_], counts: Array, successes: Array) -> ArmTotals:
    """Return the totals after each unit."""
    n, s = counts * chosen, successes * chosen
    parts = (chosen, n, s, n * n, s * s, n * s)
    return ArmTotals(*(np.cumsum(part, axis=1, dtype=float) for part in parts))


def _first(crossed: NDArray[np.bool_]) -> Array:
    return np.where(crossed.any(axis=1), crossed.argmax(axis=1) + 1.0, np.inf)


def report(name: str, plan: Plan) -> tuple[Array, Array]:
    """Return the crossings of all trials."""
    lower, upper = map(np.concatenate, zip(*first_crossings(plan), strict=True))
    print(
        f"{name}, {plan.trials:,} trials of {plan.units:,} units, share {plan.share:g}: promoted "
        f"{np.isfinite(lower).mean():.4f}, taken back {np.isfinite(upper).mean():.4f}",
        flush=True,
    )
    return lower, upper


def draw(decided: dict[str, Array], units: int) -> str:
    """Return the SVG of the share of decided trials, by the units at which each was."""
    at = range(0, units + 1, units // 100)
    curves = {
        name: [[(unit, float((found <= unit).mean())) for unit in at]]
        for name, found in decided.items()
    }
    return draw_variants("Share of the trials that are decided, by units", curves, "units")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--units", type=int, default=6_000)
    parser.add_argument("--base", type=float, default=0.5, help="rate of success")
    parser.add_argument("--turns", type=int, default=1, help="values of a unit, on average")
    parser.add_argument("--horizon", type=int, default=2_000)
    parser.add_argument("--picture", type=Path, help="file of the SVG")
    options = parser.parse_args()
    decided: dict[str, Array] = {}
    for share in (0.5, 0.1):
        common = {"share": share, "turns": options.turns, "horizon": options.horizon}
        better, worse = report(
            "A/A", Plan(options.trials, options.units, options.base, 0.0, **common)
        )
        if options.base + EFFECT > 1:
            continue
        fixed = fixed_units(options.base, share)
        trials, units = max(options.trials // 5, 1), 6 * fixed
        lower, _ = report("A/B", Plan(trials, units, options.base, EFFECT, **common))
        if share == 0.5:
            named = {"better by 0.05": lower, "equal, for better": better}
            decided |= named | {"equal, for worse": worse}
        at_power = np.quantile(lower, POWER)
        stopped = np.minimum(lower, units)
        print(
            f"  the fixed test needs {fixed:,} units; here 80 % are promoted after "
            f"{at_power:,.0f}: {at_power / fixed:.2f} times as many (bar 1.6); mean "
            f"{stopped.mean():,.0f}: {stopped.mean() / fixed:.2f}; median "
            f"{np.median(lower):,.0f}: {np.median(lower) / fixed:.2f}",
            flush=True,
        )
    if options.picture is not None:
        options.picture.write_text(draw(decided, options.units))


if __name__ == "__main__":
    main()
