"""How a server adds the losses of tokens and rows, which is measured before the first update.

The documented loss is the sum over all tokens. SkyRL's JAX backend takes the mean over rows of the
mean over the tokens with a weight. Three gradients at a learning rate of 0 tell them apart:

    long    a row of eight tokens, of which two have an advantage
    short   its first tokens, up to these two: the same sum
    twice   the short row two times
"""

from dataclasses import dataclass
from math import isclose, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tinker import types

from ltrain_train.errors import BadRun
from ltrain_train.learner.tinker_backend.datums import make_datum

TOKENS, TRAINED = 8, 2
"""Tokens of the long row's response, and of those with an advantage."""
NORMS = ("grad_norm", "grad_l2")
"""The names, or their parts, of a gradient's norm in the metrics of an optimizer step."""
TOLERANCE = 0.1
"""Relative error of a norm, which a server computes in bf16."""


@dataclass(frozen=True, slots=True)
class Aggregation:
    """The unit over which a server divides losses."""

    tokens: bool = False
    """Whether the loss of a row is the mean of its tokens with a weight, and not their sum."""
    rows: bool = False
    """Whether the loss of a batch is the mean of its rows, and not their sum."""

    def factors(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the factor of each row's advantages with which the loss is a sum over tokens.

        `counts` are the tokens with a weight of each row, of all rows of an optimizer step.
        """
        of_row = np.maximum(counts, 1).astype(np.float64) if self.tokens else np.ones(len(counts))
        return of_row * (len(counts) if self.rows else 1)


def gradient_norm(metrics: dict[str, float] | None) -> float | None:
    """Return the norm of the gradient in the metrics of an optimizer step; None: none is there."""
    for name, value in (metrics or {}).items():
        if any(part in name for part in NORMS):
            return float(value)
    return None


def measure_aggregation(run: Any) -> Aggregation:
    """Return the aggregation of a server, by updates of a new training run that change nothing.

    A server that reports no norm of gradients is taken for one as documented.

    Raises:
        BadRun: when it is another one.
    """
    ids = list(range(1, TOKENS + 2))
    advantages = np.zeros(TOKENS)
    advantages[:TRAINED] = 1.0

    def row(count: int) -> types.Datum:
        values = {"weights": np.ones(count), "logprobs": np.zeros(count)}
        return make_datum(ids[: count + 1], 1, **values, advantages=advantages[:count])

    long, short = row(TOKENS), row(TRAINED)
    found = [_norm(run, rows) for rows in ([long], [short], [short, short])]
    if None in found:
        return Aggregation()
    norms = [float(norm or 0.0) for norm in found]
    if not all(isfinite(norm) and norm > 0 for norm in norms):
        raise BadRun(f"The Tinker server has gradients of norm {norms} for a row that has one.")
    tokens = _is_mean(norms[1] / norms[0], TOKENS / TRAINED)
    rows = _is_mean(2 * norms[1] / norms[2], 2.0)
    return Aggregation(tokens, rows)


def _is_mean(ratio: float, expected: float) -> bool:
    """Return whether a ratio is that of a mean, and not 1 as that of a sum."""
    for value, is_mean in ((1.0, False), (expected, True)):
        if isclose(ratio, value, rel_tol=TOLERANCE):
            return is_mean
    raise BadRun(
        f"The Tinker server neither sums its losses nor takes their mean: a ratio of gradients is "
        f"{ratio:.3g}, and 1 or {expected:g} was expected. ltrain cannot scale advantages for it."
    )


def _norm(run: Any, rows: list[types.Datum]) -> float | None:
    run.forward_backward(rows, "importance_sampling")
    return gradient_norm(run.optim_step(types.AdamParams(learning_rate=0.0)))
