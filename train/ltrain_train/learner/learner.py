"""Trains one policy: makes optimizer steps from rows, and writes weights and checkpoints.

It needs a running Ray cluster; `ltrain_train.learner.service` runs it in a process.
"""

import time
from collections.abc import Mapping
from itertools import accumulate
from math import isfinite
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from opentelemetry.trace import Tracer

from ltrain_instrument import attributes
from ltrain_train.errors import BadBase, BadSamples, NotFinite
from ltrain_train.learner import batch, comparison, engine, loss
from ltrain_train.learner.checkpoint import fingerprint, make_record, read_record, write_record
from ltrain_train.learner.drift import check_drift, measure_drift
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.protocol import Job, StepReport
from ltrain_train.learner.samples import Kind, read_rows, split_into_steps
from ltrain_train.learner.weights import (
    adapter_size,
    atomic_directory,
    checkpoint_size,
    copy_model_files,
    export_size,
    read_vocab_size,
    require_memory,
)

STEPS_UNDONE = (
    "{} of {} optimizer steps were undone, because their gradient was not finite. Look for extreme "
    "rewards or advantages in the dataset."
)
UPDATE_UNDONE = (
    "The update was undone, because the policy's log-probabilities were not finite after it. Lower "
    "train.learning_rate, or look for extreme advantages in the dataset."
)


class Learner:
    """One policy in training, in a group of workers."""

    def __init__(self, job: Job, port: int, tracer: Tracer) -> None:
        self.job, self.tracer = job, tracer
        self.base, self.vocab_size = fingerprint(job.base), read_vocab_size(job.base)
        self.shared = engine.shares_prefixes(job)
        self.steps = self.updates = 0
        self.saved: Path | None = None
        """The checkpoint that was written or loaded last."""
        self.group = engine.make_worker_group(job, port)
        self.group.set_loss_fn(loss.objective_loss)
        if job.reference is not None:
            require_memory(job.reference.weights, min(self.group.free_memory()))
            self.group.load_reference()
        if job.checkpoint is not None:
            self.load(job.checkpoint)

    def step(
        self, samples: Path, objective: Objective, *, version: int, dataset: str
    ) -> StepReport:
        """Make one update: train on every row once, in `steps_per_wave` optimizer steps.

        An optimizer step whose gradient is not finite is left out. If the policy's
        log-probabilities are not finite afterwards, the whole update is undone: the learner
        returns to the last checkpoint, or to the base.

        Raises:
            BadSamples: when the rows cannot be trained on; then no step has been made.
            PolicyDrift: when the server's log-probabilities are too far from the learner's; then no
                step has been made.
        """
        began = time.monotonic()
        rows = self._read_rows(samples, objective.kind)
        steps_rows = self._split_rows(rows, objective.steps_per_wave, samples)
        compared, measured, warnings = self._compare_policies(steps_rows, objective, version)
        span_attributes: dict[str, str | int] = {
            attributes.POLICY_NAME: self.job.policy,
            attributes.POLICY_VERSION: version,
            attributes.DATASET_ID: dataset,
            attributes.RECIPE_DIGEST: self.job.recipe,
        }
        results = [
            self._run_optimizer_step(step_rows, objective, span_attributes, measured)
            for step_rows in compared
        ]
        metrics, undone_warnings = self._keep_finite(results, rows)
        self.updates += bool(metrics)
        return StepReport(
            metrics=_update_metrics(metrics, results, measured),
            rows=rows.height,
            tokens=batch.count_tokens(rows),
            trained_tokens=sum(map(batch.count_trained, compared)),
            steps=len(metrics),
            total_steps=self.steps,
            seconds=time.monotonic() - began,
            undone=len(results) - len(metrics),
            warnings=warnings + undone_warnings,
        )

    def log_probs(self, samples: Path, kind: Kind = "rl") -> list[list[float]]:
        """Return the log-probabilities of each row's response tokens under the current weights."""
        return [x.tolist() for x in self._log_probs(self._read_rows(samples, kind))]

    def export(self, directory: Path, *, dtype: str) -> None:
        """Write the policy, adapter merged, as a model directory for transformers and vLLM.

        Raises:
            NotFinite: when a weight is not a finite number; then nothing is written.
        """
        with atomic_directory(
            directory, "the new version", export_size(self.job.base, dtype)
        ) as draft:
            copy_model_files(self.job.base, draft, dtype)
            [bad, *_] = self.group.export(draft, dtype)
            _require_finite(bad, directory)

    def export_adapter(self, directory: Path) -> None:
        """Write the adapter as it was trained, in PEFT's layout.

        Raises:
            NotFinite: when a weight is not a finite number; then nothing is written.
            BadBase: when all weights are trained, so that there is no adapter.
        """
        rank = self.job.lora_rank
        if not rank:
            raise BadBase(
                "All weights are trained, so there is no adapter to write. Set train.lora_rank, or "
                'serve.publish = "merged".'
            )
        with atomic_directory(directory, "the new version", adapter_size(self.job.base, rank)) as d:
            [bad, *_] = self.group.export_adapter(d)
            _require_finite(bad, directory)

    def save(self, directory: Path) -> None:
        """Write a checkpoint."""
        size = checkpoint_size(self.job.base, self.job.lora_rank)
        with atomic_directory(directory, "the checkpoint", size) as draft:
            self.group.save_checkpoint(str(draft))
            write_record(draft, make_record(self.job, self.base, self.steps, self.updates))
        self.saved = directory

    def load(self, directory: Path) -> None:
        """Load a checkpoint to continue from.

        Raises:
            BadCheckpoint: when the checkpoint does not fit this learner.
        """
        checkpoint = read_record(directory, make_record(self.job, self.base))
        self.group.load_checkpoint(str(directory))
        self.steps, self.updates = checkpoint.steps, checkpoint.updates
        self.saved = directory

    def _split_rows(self, rows: pl.DataFrame, steps: int, samples: Path) -> list[pl.DataFrame]:
        """Return the rows of each optimizer step.

        Raises:
            BadSamples: when a step has no weighted token.
        """
        seed = f"{self.job.seed}.{self.updates}"
        steps_rows = list(split_into_steps(rows, steps, seed))
        if any(batch.total_weight(step_rows) == 0 for step_rows in steps_rows):
            raise BadSamples(
                f"{samples}: an optimizer step would have no token with a positive loss_weight. "
                "Lower train.steps_per_wave, or build a dataset with more weighted tokens."
            )
        return steps_rows

    def _keep_finite(
        self, results: list[dict[str, float]], rows: pl.DataFrame
    ) -> tuple[list[dict[str, float]], tuple[str, ...]]:
        """Return the metrics of the steps that count, and a warning if steps were undone.

        The engine makes no step with a gradient that is not finite.
        """
        made = [metrics for metrics in results if isfinite(metrics["grad_norm"])]
        if made and not (all(isfinite(m["loss"]) for m in made) and self._predicts_finite(rows)):
            self._undo_updates()
            return [], (UPDATE_UNDONE,)
        undone = len(results) - len(made)
        return made, (STEPS_UNDONE.format(undone, len(results)),) if undone else ()

    def _predicts_finite(self, rows: pl.DataFrame) -> bool:
        """Return whether the log-probabilities of one micro-batch of `rows` are finite."""
        lengths = rows["prompt_ids"].list.len() + rows["response_ids"].list.len()
        fitting = (lengths.cum_sum() <= self.job.tokens_per_micro_batch).to_list().count(True)
        answers = self._log_probs(rows.head(max(1, fitting)))
        return all(bool(log_probs.isfinite().all()) for log_probs in answers)

    def _undo_updates(self) -> None:
        """Return to the last checkpoint, or to the base."""
        if self.saved is not None:
            self.load(self.saved)
            return
        self.group.restart()
        self.steps = self.updates = 0

    def _run_optimizer_step(
        self,
        rows: pl.DataFrame,
        objective: Objective,
        span_attributes: Mapping[str, str | int],
        measured: Mapping[str, float],
    ) -> dict[str, float]:
        """Make one optimizer step over `rows`, inside a span that also has the `measured` metrics.

        Returns:
            all of these metrics.
        """
        with self.tracer.start_as_current_span(
            attributes.SPAN_STEP, attributes=span_attributes
        ) as span:
            step_batch = self._make_batch(rows)
            data = engine.as_training_batch(step_batch.data, objective)
            metrics = {**measured} | engine.read_metrics(self.group.train_batch(data).get())
            metrics["computed_tokens"] = step_batch.computed_tokens
            undone = not isfinite(metrics["grad_norm"])
            self.steps += not undone
            counts = {
                "step": self.steps,
                "rows": rows.height,
                "tokens": batch.count_tokens(rows),
                "undone": int(undone),
            }
            for name, value in (counts | metrics).items():
                span.set_attribute(attributes.TRAIN + name, value)
        return metrics

    def _compare_policies(
        self, steps_rows: list[pl.DataFrame], objective: Objective, version: int
    ) -> tuple[list[pl.DataFrame], dict[str, float], tuple[str, ...]]:
        """Compare the policy with the server and the reference before anything is trained.

        Returns:
            the rows with what the objective needs of it; the metrics; warnings.
        """
        if not steps_rows:
            return steps_rows, {}, ()
        metrics = {"learning_rate": objective.learning_rate}
        if objective.kind == "sft":
            return steps_rows, metrics, ()
        rows = pl.concat(steps_rows)
        old, entropy = map(_flatten, self._infer(rows, "log_probs", "entropy"))
        drift = measure_drift(rows, old, version=version, outlier=objective.drift_outlier)
        warning = check_drift(drift, objective, version)
        metrics |= drift.metrics() | {"entropy": batch.weighted_mean(rows, entropy)}
        if objective.kl_coefficient:
            reference = _flatten(self._infer_reference(rows))
            rows, kl_metrics = comparison.apply_reference(rows, old, reference, objective)
            metrics |= kl_metrics
        rows, correction_metrics = comparison.apply_correction(rows, old, objective)
        rows, rejection_metrics = comparison.apply_rejection(rows, old, objective)
        metrics |= correction_metrics | rejection_metrics
        counts = [step_rows.height for step_rows in steps_rows]
        starts = accumulate(counts, initial=0)
        parts = [rows.slice(*each) for each in zip(starts, counts, strict=False)]
        kept = [part for part in parts if batch.total_weight(part) > 0]
        rejected = _describe_rejection(len(parts) - len(kept), len(parts), objective)
        return kept, metrics, tuple(filter(None, (warning, rejected)))

    def _log_probs(self, rows: pl.DataFrame) -> list[torch.Tensor]:
        [log_probs] = self._infer(rows, "log_probs")
        return log_probs

    def _infer(
        self, rows: pl.DataFrame, *names: str, adapter: bool = True, reference: bool = False
    ) -> list[list[torch.Tensor]]:
        """Return values of each row's response tokens, under the current weights by default.

        Args:
            rows: the rows.
            names: of the values: `log_probs` and `entropy`.
            adapter: use the model with its adapter, if it has one.
            reference: use the reference that was loaded, in place of the model.
        """
        step_batch = self._make_batch(rows)
        data = engine.as_inference_batch(
            step_batch.data, entropy="entropy" in names, adapter=adapter
        )
        infer = self.group.infer_reference if reference else self.group.infer_batch
        answer = infer(data).get()
        return [batch.response_values(answer, name, step_batch) for name in names]

    def _infer_reference(self, rows: pl.DataFrame) -> list[torch.Tensor]:
        """Return the log-probabilities of each row's response tokens under the reference.

        Raises:
            BadBase: when all weights are trained and no reference was loaded.
        """
        is_loaded = self.job.reference is not None
        if not is_loaded and not self.job.lora_rank:
            raise BadBase(
                "train.kl_coefficient needs a reference, and this learner trains all weights and "
                "has loaded none. Name the directory of one when the learner is started."
            )
        [log_probs] = self._infer(rows, "log_probs", adapter=is_loaded, reference=is_loaded)
        return log_probs

    def _read_rows(self, samples: Path, kind: Kind = "rl") -> pl.DataFrame:
        return read_rows(samples, vocab_size=self.vocab_size, kind=kind)

    def _make_batch(self, rows: pl.DataFrame) -> batch.StepBatch:
        tokens = self.job.tokens_per_micro_batch
        return batch.make_batch(rows, ranks=self.job.ranks, tokens=tokens, shared=self.shared)


def _flatten(values: list[torch.Tensor]) -> NDArray[np.float32]:
    """Return the values of all rows as one array."""
    return torch.cat(values).numpy()


def _require_finite(bad: list[str], directory: Path) -> None:
    if bad:
        raise NotFinite(
            f"The policy was not written to {directory}: {len(bad)} of its tensors have numbers "
            f"that are not finite, {bad[0]} for example. Continue from a checkpoint, with a lower "
            "train.learning_rate."
        )


def _describe_rejection(rejected: int, steps: int, objective: Objective) -> str:
    """Return the warning about optimizer steps without an accepted call; empty if there is none."""
    if not rejected:
        return ""
    return (
        f"{rejected} of {steps} optimizer steps were left out, because every call in them was "
        f"rejected: with train.rejection = '{objective.rejection}', the probabilities of learner "
        f"and server may differ by a factor from {objective.rejection_min:g} to "
        f"{objective.rejection_max:g}. Look at the metrics drift_*, or widen train.rejection_min "
        "and rejection_max."
    )


def _update_metrics(
    made: list[dict[str, float]], results: list[dict[str, float]], measured: dict[str, float]
) -> dict[str, float]:
    """Return the means over the steps that count, and the sum of `computed_tokens` over all.

    If no step counts, the means are those that were `measured` before the steps.
    """
    names = made[0] if made else ()
    means = measured | {name: sum(step[name] for step in made) / len(made) for name in names}
    return means | {"computed_tokens": sum(metrics["computed_tokens"] for metrics in results)}
