"""Rendered rows get the log-probabilities of the version that answered, and far rows are left out.

Expected values are those of an update on sampled rows that have these log-probabilities.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.train.learner.conftest import TRAIN

from ltrain_train.errors import BadSamples
from ltrain_train.learner.client import LearnerClient
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.protocol import StepReport
from ltrain_train.policy import Reference as Weights

pytestmark = pytest.mark.xdist_group("learner")

Rows = list[dict[str, Any]]
OBJECTIVE = Objective.from_train(TRAIN)


def rendered(rows: Rows) -> Rows:
    """Return the rows as a template would have rendered them: without log-probabilities."""
    none: Rows = [
        {"tokens": "rendered", "rollout_logprobs": [0.0] * len(r["response_ids"])} for r in rows
    ]
    return [row | fields for row, fields in zip(rows, none, strict=True)]


@pytest.fixture
def step_twice(
    learner: LearnerClient, write: Callable[[Rows], Path], tmp_path: Path
) -> Callable[..., tuple[StepReport, StepReport]]:
    """Return a function that makes an update on each of two sets of rows, from equal weights."""

    def run(first: Rows, second: Rows, **options: Any) -> tuple[StepReport, StepReport]:
        learner.save(tmp_path / "start")
        before = learner.step(write(first), OBJECTIVE, version=0)
        learner.load(tmp_path / "start")
        return before, learner.step(write(second), **{"objective": OBJECTIVE, **options}, version=0)

    return run


def test_the_old_log_probabilities_are_those_of_the_version_of_each_call(
    make_rows: Callable[..., Rows],
    write: Callable[[Rows], Path],
    reference: Callable[..., dict[str, Any]],
    step_twice: Callable[..., tuple[StepReport, StepReport]],
    tiny: Path,
    other: Path,
) -> None:
    rows = make_rows(12)
    long = next(row for row in rows if len(row["response_ids"]) > 4)
    long |= {"call_offsets": [0, 3], "call_versions": [0, 3], "call_positions": [0, 1]}
    next(row for row in rows if row is not long)["call_versions"] = [3]
    samples = write(rows)
    under = {0: reference(tiny, samples)["log_probs"], 3: reference(other, samples)["log_probs"]}
    scored = []
    for number, row in enumerate(rows):
        bounds = [*row["call_offsets"], len(row["response_ids"])]
        old = [
            under[version][number][i] * row["response_mask"][i]
            for version, begin, end in zip(row["call_versions"], bounds, bounds[1:], strict=False)
            for i in range(begin, end)
        ]
        scored.append(row | {"rollout_logprobs": old})
    expected, report = step_twice(scored, rendered(rows), versions={3: Weights(other)})
    for name in ("loss", "grad_norm", "clip_fraction"):
        assert report.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-3, abs=1e-6)
    assert report.metrics["rendered_rows"] == 12
    assert report.metrics["drift_tokens"] == 0
    assert (report.metrics["rendered_k3"] > 0, report.metrics["rendered_left_out"]) == (True, 0)
    assert report.metrics["rendered_difference"] > 0
    assert report.warnings == ()


def test_rows_of_a_version_too_far_away_are_left_out_of_the_loss(
    make_rows: Callable[..., Rows],
    step_twice: Callable[..., tuple[StepReport, StepReport]],
    other: Path,
) -> None:
    rows = make_rows(8)
    far = [row | {"call_versions": [3]} for row in rows[:4]]
    near = rendered(rows[4:])
    strict = replace(OBJECTIVE, drift_limit=1e-6)
    options = {"objective": strict, "versions": {3: Weights(other)}}
    expected, report = step_twice(near, [*rendered(far), *near], **options)
    for name in ("loss", "grad_norm"):
        assert report.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-3, abs=1e-6)
    assert report.metrics["rendered_left_out"] == 4
    [warning] = report.warnings
    assert warning.startswith("4 of 8 rendered rows were left out of the loss: the version that")


def test_rendered_rows_of_a_version_without_weights_are_refused(
    learner: LearnerClient, make_rows: Callable[..., Rows], write: Callable[[Rows], Path]
) -> None:
    rows = [row | {"call_versions": [3]} for row in rendered(make_rows(2))]
    for version in (3, None):
        rows[0]["call_versions"] = [version]
        with pytest.raises(BadSamples, match="or the weights of the version that answered"):
            learner.step(write(rows), OBJECTIVE, version=0)


def test_text_that_the_version_would_not_sample_is_a_warning(
    learner: LearnerClient, make_rows: Callable[..., Rows], write: Callable[[Rows], Path]
) -> None:
    """The tiny model knows nothing: after training on one word, other words are surprising."""
    rows = make_rows(200)
    for row in rows:
        row["response_ids"] = [7] * len(row["response_ids"])
    sft = replace(OBJECTIVE, kind="sft", learning_rate=1e-2)
    for _ in range(6):
        learner.step(write(rendered(rows)), sft, version=0)
    expected = learner.step(write(rendered(rows)), OBJECTIVE, version=0)
    assert (expected.warnings, expected.metrics["rendered_k3"]) == ((), 0)
    assert expected.metrics["rendered_difference"] == 0
    report = learner.step(write(rendered(make_rows(200))), OBJECTIVE, version=0)
    assert report.metrics["rendered_surprise"] > 1
    assert report.warnings[0].startswith("The texts of the rendered rows are less likely under v0")
