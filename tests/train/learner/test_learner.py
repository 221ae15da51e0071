"""The learner process on a tiny model, compared with plain torch."""

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.train.learner.conftest import TRAIN

from ltrain_train.errors import BadBase, BadCheckpoint, BadSamples
from ltrain_train.learner.client import LearnerClient
from ltrain_train.learner.objective import Objective
from ltrain_train.policy import HostMemory, find_difference

Rows = list[dict[str, Any]]
Make = Callable[..., Rows]
Write = Callable[[Rows], Path]
Reference = Callable[..., dict[str, Any]]
OBJECTIVE = Objective.from_train(TRAIN)


def flat(rows: list[list[float]]) -> list[float]:
    return [x for row in rows for x in row]


def test_micro_batches_and_weights_equal_one_full_batch(
    learner: LearnerClient, tiny: Path, make_rows: Make, write: Write, reference: Reference
) -> None:
    samples = write(make_rows(40))  # some 15 micro-batches
    expected = reference(tiny, samples, steps=2, lr=1e-3)
    reports = [learner.step(samples, OBJECTIVE, version=0) for _ in range(2)]
    # a mean of numbers near one that cancel: float32 knows it to 1e-6, whatever is left of it
    assert [r.metrics["loss"] for r in reports] == pytest.approx(expected["loss"], abs=1e-6)
    assert [r.metrics["grad_norm"] for r in reports] == pytest.approx(
        expected["grad_norm"], rel=1e-4
    )
    assert reports[0].metrics["computed_tokens"] < 0.8 * reports[0].tokens
    log_probs = learner.log_probs(samples)
    assert flat(log_probs) == pytest.approx(flat(expected["log_probs"]), abs=1e-4)
    assert (reports[1].rows, reports[1].steps, reports[1].total_steps) == (40, 1, 2)


def test_a_model_that_left_its_memory_and_came_back_trains_on(
    learner: LearnerClient, tiny: Path, make_rows: Make, write: Write, reference: Reference
) -> None:
    samples = write(make_rows(8))
    expected = reference(tiny, samples, steps=2, lr=1e-3)
    losses = []
    for _ in range(2):
        learner.move("gpu")
        losses.append(learner.step(samples, OBJECTIVE, version=0).metrics["loss"])
        learner.move("host")
    learner.move("gpu")
    assert losses == pytest.approx(expected["loss"], abs=1e-6)


def test_a_step_raises_the_probability_of_good_rows_and_lowers_that_of_bad_ones(
    learner: LearnerClient, make_rows: Make, write: Write
) -> None:
    rows = make_rows(8, seed=1)
    for i, row in enumerate(rows):
        row["advantages"] = [(1.0 if i % 2 else -1.0) * m for m in row["response_mask"]]
    samples = write(rows)
    before = learner.log_probs(samples)
    learner.step(samples, OBJECTIVE, version=0)
    after = learner.log_probs(samples)
    for i, row in enumerate(rows):
        gain = sum(
            (a - b) * m for a, b, m in zip(after[i], before[i], row["response_mask"], strict=True)
        )
        assert (gain > 0) == bool(i % 2)


def test_an_export_has_the_learners_weights(
    learner: LearnerClient, tmp_path: Path, make_rows: Make, write: Write, reference: Reference
) -> None:
    samples = write(make_rows(8))
    learner.step(samples, OBJECTIVE, version=0)
    learner.export(tmp_path / "v1")
    log_probs = reference(tmp_path / "v1", samples)
    assert flat(learner.log_probs(samples)) == pytest.approx(flat(log_probs["log_probs"]), abs=1e-4)
    assert sorted(file.name for file in (tmp_path / "v1").iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert not list(tmp_path.glob(".*"))


def test_shared_weights_are_those_that_are_exported_until_they_are_freed(
    learner: LearnerClient, tmp_path: Path, make_rows: Make, write: Write
) -> None:
    learner.step(write(make_rows(8)), OBJECTIVE, version=0)
    shared = learner.share()
    assert shared is not None and isinstance(shared.memory, HostMemory)
    place = Path(f"/proc/{shared.memory.process}/fd/{shared.memory.descriptor}")
    data = place.read_bytes()
    assert os.readlink(place) == f"/memfd:ltrain-{shared.token} (deleted)"
    learner.export(tmp_path / "shared", shared=True)
    learner.unshare()
    assert not place.exists()
    learner.export(tmp_path / "own")
    [first, second] = [
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("shared", "own")
    ]
    assert first == second
    shared.require_tensors_of(tmp_path / "own")
    digests = {}
    for tensor in shared.tensors:
        end = tensor.start + 4 * math.prod(tensor.shape)
        digests[tensor.name] = hashlib.sha256(data[tensor.start : end]).hexdigest()
    assert find_difference(digests, tmp_path / "own") is None
    learner.unshare()  # once more does nothing


def test_an_export_in_bf16_is_labelled_and_half_as_large(
    learner: LearnerClient, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "v1").mkdir()  # a draft that somebody made is taken
    learner.export(tmp_path / "v1", dtype="bf16")
    assert '"dtype": "bfloat16"' in (tmp_path / "v1" / "config.json").read_text()
    size = (tmp_path / "v1" / "model.safetensors").stat().st_size
    assert size < 0.55 * (tiny / "model.safetensors").stat().st_size


def test_training_from_a_loaded_checkpoint_equals_uninterrupted_training(
    learner: LearnerClient, tmp_path: Path, make_rows: Make, write: Write
) -> None:
    samples = write(make_rows(12))
    learner.step(samples, OBJECTIVE, version=0)
    learner.save(tmp_path / "checkpoint")
    first = learner.step(samples, OBJECTIVE, version=1)
    expected = learner.log_probs(samples)
    learner.load(tmp_path / "checkpoint")
    second = learner.step(samples, OBJECTIVE, version=1)
    assert second.metrics == first.metrics
    assert second.total_steps == 2
    assert learner.log_probs(samples) == expected


def test_every_optimizer_step_is_a_span_with_its_numbers(
    learner: LearnerClient, sink: Any, make_rows: Make, write: Write
) -> None:
    report = learner.step(write(make_rows(5)), OBJECTIVE, version=1, dataset="a-dataset")
    step = sink.step("a-dataset")
    assert step["ltrain.policy.name"] == "tiny"
    assert step["ltrain.policy.version"] == 1
    assert step["ltrain.dataset.id"] == "a-dataset"
    assert step["ltrain.recipe.digest"] == "a-recipe"
    assert step["ltrain.train.step"] == report.total_steps
    assert step["ltrain.train.rows"] == 5
    assert step["ltrain.train.tokens"] == report.tokens
    numbers = {name: step[f"ltrain.train.{name}"] for name in report.metrics}
    assert numbers == pytest.approx(report.metrics)


def test_a_step_with_an_infinite_gradient_is_undone_said_and_counted(
    learner: LearnerClient, sink: Any, make_rows: Make, write: Write
) -> None:
    rows = make_rows(8)
    before = learner.log_probs(write(rows))
    for row in rows:
        row["advantages"] = [3e38] * len(row["response_ids"])
    report = learner.step(write(rows), OBJECTIVE, version=0, dataset="infinite")
    assert (report.steps, report.undone, report.total_steps) == (0, 1, 0)
    drift = {f"drift_{name}" for name in ("tokens", "mean", "k3", "ess", "outliers")}
    assert report.metrics.keys() == drift | {"computed_tokens", "entropy", "learning_rate"}
    assert report.warnings[0].startswith("1 of 1 optimizer steps were undone")
    assert sink.step("infinite")["ltrain.train.undone"] == 1
    assert learner.log_probs(write(make_rows(8))) == before
    good = learner.step(write(make_rows(8)), OBJECTIVE, version=0)
    assert (good.steps, good.undone, good.warnings) == (1, 0, ())


def test_a_row_longer_than_a_micro_batch_is_trained(
    learner: LearnerClient, make_rows: Make, write: Write
) -> None:
    rows = make_rows(3)
    rows[0]["prompt_ids"] = [7] * 200
    assert learner.step(write(rows), OBJECTIVE, version=0).rows == 3


BAD_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "rendered": (
        {"tokens": "rendered", "call_versions": [9]},
        "its tokens are rendered, not sampled",
    ),
    "prompt": ({"prompt_ids": []}, "it has no prompt"),
    "ragged": ({"response_mask": [1] * 20}, "must be as long as response_ids"),
    "greedy": ({"temperature": 0.0}, "temperature must be above 0"),
    "word": ({"prompt_ids": [99_999]}, "a token id is not below 517"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_row_that_cannot_be_trained_on_is_named(
    learner: LearnerClient, name: str, make_rows: Make, write: Write
) -> None:
    change, sentence = BAD_ROWS[name]
    rows = make_rows(3)
    rows[1] |= change
    samples = write(rows)
    with pytest.raises(BadSamples, match=f"sample s1.*{sentence}"):
        learner.step(samples, OBJECTIVE, version=0)


def no_file(path: Path) -> None: ...


def no_parquet(path: Path) -> None:
    path.write_text("{}")


def no_column(path: Path) -> None:
    pl.DataFrame({"sample_id": ["s0"]}).write_parquet(path)


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (no_file, "Cannot read .*samples.parquet"),
        (no_parquet, "Cannot read .*samples.parquet as parquet"),
        (no_column, "has no column tokens, prompt_ids"),
    ],
)
def test_a_file_that_is_not_a_samples_table_is_refused(
    learner: LearnerClient, tmp_path: Path, write: Callable[[Path], None], sentence: str
) -> None:
    write(tmp_path / "samples.parquet")
    with pytest.raises(BadSamples, match=sentence):
        learner.step(tmp_path / "samples.parquet", OBJECTIVE, version=0)


def test_rows_without_any_weight_are_refused(
    learner: LearnerClient, make_rows: Make, write: Write
) -> None:
    rows = make_rows(1)
    rows[0]["loss_weight"] = [0.0] * len(rows[0]["response_ids"])
    with pytest.raises(BadSamples, match="no token with a positive loss_weight"):
        learner.step(write(rows), OBJECTIVE, version=0)


@pytest.mark.nightly
def test_a_divergence_without_a_reference_is_refused(
    tiny: Path, tmp_path: Path, make_rows: Make, write: Write
) -> None:
    samples = write(make_rows(3))
    diverging = replace(OBJECTIVE, kl_coefficient=0.1)
    refused = pytest.raises(BadBase, match=r"train\.kl_coefficient needs a reference, and this lea")
    with LearnerClient(TRAIN, tiny, directory=tmp_path, policy="tiny") as learner:
        before = learner.log_probs(samples)
        with refused:
            learner.step(samples, diverging, version=0)
        assert learner.log_probs(samples) == before


def test_a_learner_of_all_weights_has_no_adapter(learner: LearnerClient, tmp_path: Path) -> None:
    with pytest.raises(BadBase, match=r'Set train\.lora_rank, or serve\.publish = "merged"'):
        learner.export_adapter(tmp_path / "adapter")


def test_an_incomplete_checkpoint_is_never_loaded(learner: LearnerClient, tmp_path: Path) -> None:
    learner.save(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "learner.json").unlink()
    with pytest.raises(BadCheckpoint, match="Name the directory of a complete checkpoint"):
        learner.load(tmp_path / "checkpoint")
