"""Alarms: rules whose reward rises from wave to wave while the outcome does not.

A policy that farms a rule gets more and more of its reward, and the task does not profit. The
alarm compares means of waves, so it names an observation and not a cause.
"""

from collections.abc import Mapping
from itertools import pairwise

WAVES = 6
"""Training waves in a row in which the reward rises: by chance in one of 720 such windows."""

HALF = WAVES // 2

MIN_RISE = 1e-6
"""Smallest rise between two waves; the contributions of a potential have a constant sum."""


def divergences(
    rules: Mapping[str, Mapping[int, float]], outcomes: Mapping[int, float]
) -> dict[int, list[str]]:
    """Return a sentence for each diverging rule, by wave.

    A rule diverges in a wave if its mean rises from each of `WAVES` waves to the next one up to
    this wave, and the mean outcome of the later half of them is not above that of the earlier half.

    Args:
        rules: the mean reward of each rule by training wave; a wave without it has 0.
        outcomes: the mean of the evaluations that are rewarded, by training wave.
    """
    waves = sorted(outcomes)
    found: dict[int, list[str]] = {}
    for end in range(WAVES, len(waves) + 1):
        window = waves[end - WAVES : end]
        earlier, later = (
            sum(outcomes[wave] for wave in half) / HALF for half in (window[:HALF], window[HALF:])
        )
        if later > earlier:
            continue
        for rule, means in sorted(rules.items()):
            values = [means.get(wave, 0.0) for wave in window]
            if all(after - before > MIN_RISE for before, after in pairwise(values)):
                found.setdefault(window[-1], []).append(
                    f"wave {window[-1]}: `{rule}` rose in every wave since {window[0]} (mean "
                    f"{values[0]:.2f} to {values[-1]:.2f}) while the outcome did not (mean "
                    f"{earlier:.2f} to {later:.2f}): the policy may farm the rule; see "
                    "docs/rules.md"
                )
    return found
