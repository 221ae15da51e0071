"""The difference between the learner's and the server's log-probabilities."""

from math import exp, inf

import numpy as np
import polars as pl
import pytest

from ltrain_train.errors import PolicyDrift
from ltrain_train.learner.drift import Drift, check_drift, measure_drift
from ltrain_train.learner.objective import Objective
from ltrain_transforms.recipe import Train
from ltrain_transforms.tables import SAMPLES

OBJECTIVE = Objective.from_train(Train())
ROWS = pl.DataFrame(
    {
        "tokens": [*["sampled"] * 4, "rendered"],
        "response_ids": [[5, 6, 7], [5], [5], [5], [5]],
        "response_mask": [[1, 0, 1], [1], [1], [1], [1]],
        "rollout_logprobs": [[-1.0, 0.0, -2.0], [-1.0], [-1.0], [-1.0], [0.0]],
        "call_versions": [[3, 3], [2], [2, 3], [None], [3]],
    },
    schema_overrides={
        name: SAMPLES.schema[name]
        for name in ("response_ids", "response_mask", "rollout_logprobs", "call_versions")
    },
)
LOG_PROBS = np.array([-0.9, -9.0, -2.6, -9.0, -9.0, -9.0, -9.0])


def test_the_drift_is_that_of_the_tokens_that_the_version_sampled() -> None:
    drift = measure_drift(ROWS, LOG_PROBS, version=3, outlier=0.5)
    first, second = exp(0.1), exp(-0.6)
    assert drift.metrics() == pytest.approx(
        {
            "drift_tokens": 2,
            "drift_mean": -0.25,
            "drift_k3": (first - 1 - 0.1 + second - 1 + 0.6) / 2,
            "drift_ess": (first + second) ** 2 / 2 / (first**2 + second**2),
            "drift_outliers": 0.5,
        },
        rel=1e-6,
    )


def test_rows_of_other_versions_have_no_drift() -> None:
    drift = measure_drift(ROWS, LOG_PROBS, version=9, outlier=0.5)
    assert drift.metrics() == {"drift_tokens": 0}
    assert check_drift(drift, OBJECTIVE, 9) is None


def test_a_drift_above_one_bound_is_a_warning_and_above_the_second_an_error() -> None:
    assert check_drift(Drift(8, k3=0.02), OBJECTIVE, 3) is None
    warning = check_drift(Drift(8, k3=0.021), OBJECTIVE, 3)
    assert warning is not None
    assert "8 tokens that v3 sampled: k3 0.021," in warning
    with pytest.raises(PolicyDrift, match=r"above train\.drift_limit = 0\.2, so nothing"):
        check_drift(Drift(8, k3=0.21), OBJECTIVE, 3)


@pytest.mark.parametrize("number", [inf, -inf, float("nan"), 1e4])
def test_a_log_probability_that_is_far_off_is_above_every_limit(number: float) -> None:
    drift = measure_drift(ROWS[:1], np.array([number, 0, -2]), version=3, outlier=0.5)
    with pytest.raises(PolicyDrift):
        check_drift(drift, Objective.from_train(Train(drift_limit=1e9)), 3)
