"""Each objective trains as its formulas in plain torch do, in one learner process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file
from tests.train.learner.conftest import TRAIN, write_rows

from ltrain_train.errors import BadBase, BadSamples
from ltrain_train.learner import LearnerClient, Objective
from ltrain_train.learner.objective import decode_objective

Rows = list[dict[str, Any]]
Make = Callable[..., Rows]
References = Callable[..., list[dict[str, Any]]]

STEPS = 2
"""Updates of each case."""
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vanilla": ({}, {}),
    "learning rate and gradient clip": (
        {"learning_rate": 5e-4, "gradient_clip": 0.01},
        {"lr": 5e-4, "clip": 0.01},
    ),
    "an option of verl": ({"actor": {"clip_ratio_c": 1.05}}, {"dual": 1.05}),
    "entropy": ({"entropy_coefficient": 0.1}, {"entropy": 0.1}),
    "kl in the loss": (
        {"kl_coefficient": 0.3, "kl_in": "loss", "kl_estimator": "k3"},
        {"kl": 0.3, "kl_in": "loss", "kl_estimator": "k3"},
    ),
    "kl in the loss, straight through": (
        {"kl_coefficient": 0.3, "kl_in": "loss", "kl_estimator": "k3+"},
        {"kl": 0.3, "kl_in": "loss", "kl_estimator": "k3+"},
    ),
    "kl in the reward": (
        {"kl_coefficient": 0.3, "kl_in": "reward", "kl_estimator": "k1"},
        {"kl": 0.3, "kl_in": "reward", "kl_estimator": "k1"},
    ),
    "token_tis": (
        {"loss": "cispo", "correction": "token_tis", "correction_cap": 1.1},
        {"loss": "cispo", "correction": "token_tis", "cap": 1.1},
    ),
    "sequence_tis": (
        {"correction": "sequence_tis", "correction_cap": 1.2},
        {"correction": "sequence_tis", "cap": 1.2},
    ),
    "cross-entropy": ({"kind": "sft"}, {"kind": "sft"}),
    "geometric": (
        {"rejection": "geometric", "rejection_min": 0.9, "rejection_max": 1.2},
        {"rejection": "geometric", "min": 0.9, "max": 1.2},
    ),
    "token_veto": (
        {"rejection": "token_veto", "rejection_min": 0.8, "rejection_max": 1.5},
        {"rejection": "token_veto", "min": 0.8, "max": 1.5},
    ),
}
"""For each objective what a recipe sets, and the case of `reference.py`."""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory, make_rows: Make) -> Path:
    """Write rows, of which the long ones have two calls."""
    rows = make_rows(16)
    for row in rows:
        if len(row["response_ids"]) > 3:
            row |= {"call_offsets": [0, 2], "call_versions": [0, 0]}
            row["response_mask"][2] = 1
    return write_rows(rows, tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def expected(
    tmp_path_factory: pytest.TempPathFactory,
    tiny: Path,
    other: Path,
    samples: Path,
    references: References,
) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("expected")
    defaults = {"lr": 1e-3, "steps": STEPS, "reference": str(other)}
    cases = [
        defaults | {"weights": str(folder / f"{name}.safetensors")} | case
        for name, (_, case) in CASES.items()
    ]
    results = references(tiny, samples, cases)
    return {
        name: result | {"weights": case["weights"]}
        for name, case, result in zip(CASES, cases, results, strict=True)
    }


@pytest.mark.parametrize("name", CASES)
def test_an_objective_trains_as_in_plain_torch(
    learner: LearnerClient,
    tiny: Path,
    tmp_path: Path,
    samples: Path,
    expected: dict[str, dict[str, Any]],
    name: str,
) -> None:
    settings, _ = CASES[name]
    objective = objective_of(**settings)
    reports = [learner.step(samples, objective, version=0) for _ in range(STEPS)]
    numbers = {key: [r.metrics[key] for r in reports] for key in ("loss", "grad_norm")}
    assert numbers["loss"] == pytest.approx(expected[name]["loss"], rel=1e-5, abs=1e-6)
    assert numbers["grad_norm"] == pytest.approx(expected[name]["grad_norm"], rel=1e-5)
    learner.export(tmp_path / "trained")
    trained, plain = (
        load_file(tmp_path / "trained" / "model.safetensors"),
        load_file(expected[name]["weights"]),
    )
    assert distance(trained, plain) < 1e-5
    assert distance(load_file(tiny / "model.safetensors"), plain) > 1e-3


def test_rendered_rows_train_by_cross_entropy(
    learner: LearnerClient, tmp_path: Path, samples: Path, expected: dict[str, dict[str, Any]]
) -> None:
    unused = {"rollout_logprobs": None, "advantages": None, "temperature": None}
    unused |= {"call_versions": None}
    rows = [row | unused | {"tokens": "rendered"} for row in pl.read_parquet(samples).to_dicts()]
    rendered = write_rows(rows, tmp_path)
    with pytest.raises(BadSamples, match="its tokens are rendered, not sampled"):
        learner.step(rendered, objective_of(), version=0)
    report = learner.step(rendered, objective_of(kind="sft"), version=0)
    loss, norm = (expected["cross-entropy"][name][0] for name in ("loss", "grad_norm"))
    assert report.metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert report.metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert report.metrics.keys() == {"loss", "grad_norm", "learning_rate", "computed_tokens"}


def test_rejected_calls_are_counted_and_all_rejected_is_a_warning(
    learner: LearnerClient, samples: Path
) -> None:
    before = learner.log_probs(samples)
    geometric = {"rejection": "geometric", "rejection_min": 0.9, "rejection_max": 1.2}
    report = learner.step(samples, objective_of(**geometric), version=0)
    shares = [report.metrics[f"rejected_{what}"] for what in ("tokens", "calls")]
    assert all(0.1 < share < 0.9 for share in shares)
    narrow = objective_of(rejection="token_veto", rejection_min=1.0, rejection_max=1.0)
    learner.load(learner.log.parent / "untrained")
    report = learner.step(samples, narrow, version=0)
    assert (report.steps, report.undone, report.trained_tokens) == (0, 0, 0)
    assert report.metrics["rejected_calls"] == report.metrics["rejected_tokens"] == 1.0
    [warning] = [each for each in report.warnings if "rejected" in each]
    assert warning.startswith("1 of 1 optimizer steps were left out, because every call in them")
    assert learner.log_probs(samples) == before


def test_an_objective_with_a_critic_needs_a_learner_with_one(
    learner: LearnerClient, samples: Path
) -> None:
    with pytest.raises(BadBase, match=r"recipe that has \[train.critic\]"):
        learner.step(samples, objective_of(critic={}), version=0)


def objective_of(**settings: Any) -> Objective:
    return decode_objective(Objective.from_train(TRAIN).encode() | settings)


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the distance of two models' weights, relative to the length of the second."""
    both = one.keys() & other.keys()
    assert len(both) > 10
    vectors = [np.concatenate([x[name].ravel() for name in sorted(both)]) for x in (one, other)]
    return float(np.linalg.norm(vectors[0] - vectors[1]) / np.linalg.norm(vectors[1]))
