"""Trains one policy: makes optimizer steps from rows, and writes weights and checkpoints.

`ltrain_train.learner.service` runs it in a process. Several ranks need a running Ray cluster.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import polars as pl
from opentelemetry.trace import Tracer

from ltrain_instrument import attributes
from ltrain_train.errors import BadBase, BadCheckpoint
from ltrain_train.learner.checkpoint import fingerprint, make_record, read_record, write_record
from ltrain_train.learner.drift import check_drift, measure_drift
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.optimizer_steps import (
    UPDATE_UNDONE,
    record_step,
    step_attributes,
    update_metrics,
)
from ltrain_train.learner.protocol import Job, Place, StepReport
from ltrain_train.learner.row_values import (
    count_tokens,
    count_trained,
    split_weighted,
    weighted_mean,
)
from ltrain_train.learner.samples import Kind, read_rows
from ltrain_train.learner.verl_backend import batch, comparison, engine, loss, rendered_rows
from ltrain_train.learner.verl_backend.critic_training import CriticTraining
from ltrain_train.learner.verl_backend.inference import Inference, flatten
from ltrain_train.learner.verl_backend.placement import Placement
from ltrain_train.learner.verl_backend.rank import batch_tokens, shares_prefixes
from ltrain_train.learner.weights import (
    atomic_directory,
    copy_model_files,
    export_size,
    read_vocab_size,
    require_finite,
)
from ltrain_train.policy import Reference, adapter_size, checkpoint_size

STEPS_UNDONE = (
    "{} of {} optimizer steps were undone, because their gradient was not finite. Look for extreme "
    "rewards or advantages in the dataset."
)
IDS_REFUSED = (
    "{} left out of the loss, because the policy server sampled an id that the grammar does not "
    "allow here. Serve with the vLLM of this release and the option "
    '--structured-outputs-config \'{{"backend": "xgrammar"}}\'.'
)

NOT_SHARED = "The weights reach vLLM as files, because the learner's memory is not shared: {}."


class Learner:
    """One policy in training, in a group of workers."""

    def __init__(self, job: Job, placement: Placement | None, tracer: Tracer) -> None:
        self.job, self.tracer = job, tracer
        self.base, self.vocab_size = fingerprint(job.base), read_vocab_size(job.base)
        self.shared, self.batch_tokens = shares_prefixes(job), batch_tokens(job)
        self.steps = self.updates = 0
        self.saved: Path | None = None
        """The checkpoint that was written or loaded last."""
        self.group = engine.make_worker_group(job, placement)
        self.group.set_loss_fn(loss.objective_loss)
        self.inference = Inference(job, self.group, self._make_batch)
        if job.reference is not None:
            self.inference.load(job.reference, f"The reference {job.reference.weights}")
        self.critic = CriticTraining(job, self.group, self._make_batch) if job.critic else None
        self.notes: tuple[str, ...] = ()
        """Warnings for the report of the next update."""
        if job.checkpoint is not None:
            self.load(job.checkpoint)

    def step(
        self,
        samples: Path,
        objective: Objective,
        *,
        version: int,
        dataset: str,
        versions: Mapping[int, Reference],
    ) -> StepReport:
        """Make one update: train on every row once, in `steps_per_wave` optimizer steps.

        An optimizer step whose gradient is not finite is left out. If the policy's
        log-probabilities are not finite afterwards, the whole update is undone: the learner
        returns to the last checkpoint, or to the base. A critic computes the advantages before the
        update, and makes each optimizer step before the policy does.
        """
        began = time.monotonic()
        critic = self._critic_of(objective)
        known = (version, *versions)
        rows = self._read_rows(samples, objective.kind, critic=critic is not None, versions=known)
        seed = f"{self.job.seed}.{self.updates}"
        steps_rows = split_weighted(rows, objective.steps_per_wave, seed, samples)
        compared, measured, warnings = self._compare_policies(
            steps_rows, objective, version, versions
        )
        names = step_attributes(self.job, version, dataset)
        results = [
            self._run_optimizer_step(step_rows, objective, names, measured)
            for step_rows in compared
        ]
        metrics, undone_warnings = self._keep_finite(results, rows)
        self.updates += bool(metrics)
        return StepReport(
            metrics=update_metrics(metrics, results, measured),
            rows=rows.height,
            tokens=count_tokens(rows),
            trained_tokens=sum(map(count_trained, compared)),
            steps=len(metrics),
            total_steps=self.steps,
            seconds=time.monotonic() - began,
            undone=len(results) - len(metrics),
            warnings=self._take_notes() + warnings + undone_warnings,
        )

    def log_probs(self, samples: Path, kind: Kind = "rl") -> list[list[float]]:
        """Return the log-probabilities of each row's response tokens under the current weights."""
        return [x.tolist() for x in self.inference.log_probs(self._read_rows(samples, kind))]

    def share(self, *, dtype: str) -> dict[str, Any] | None:
        """Round the policy, adapter merged, into memory that vLLM on this machine can open."""
        if not self.job.is_alone or export_size(self.job.base, dtype) > self.group.free_memory()[0]:
            return None
        try:
            [shared] = self.group.share(dtype)
        except (RuntimeError, OSError) as error:  # of torch: CUDA's IPC depends on the system
            self.unshare()
            self.notes += (NOT_SHARED.format(error),)
            return None
        message: dict[str, Any] = shared.model_dump(mode="json")
        return message

    def unshare(self) -> None:
        """Free that memory."""
        self.group.unshare()

    def export(self, directory: Path, *, dtype: str, shared: bool = False) -> None:
        """Write the policy, adapter merged, as a model directory for transformers and vLLM."""
        with atomic_directory(
            directory, "the new version", export_size(self.job.base, dtype)
        ) as draft:
            copy_model_files(self.job.base, draft, dtype)
            [bad, *_] = self.group.export(draft, dtype, shared)
            require_finite(bad, directory)

    def export_adapter(self, directory: Path) -> None:
        """Write the adapter as it was trained, in PEFT's layout."""
        rank = self.job.lora_rank
        if not rank:
            raise BadBase(
                "All weights are trained, so there is no adapter to write. Set train.lora_rank, or "
                'serve.publish = "merged".'
            )
        with atomic_directory(directory, "the new version", adapter_size(self.job.base, rank)) as d:
            [bad, *_] = self.group.export_adapter(d)
            require_finite(bad, directory)

    def save(self, directory: Path) -> None:
        """Write a checkpoint."""
        models = 1 if self.critic is None else 2
        size = models * checkpoint_size(self.job.base, self.job.lora_rank)
        with atomic_directory(directory, "the checkpoint", size) as draft:
            self.group.save_checkpoint(str(draft))
            if self.critic is not None:
                self.critic.save(draft)
            write_record(draft, make_record(self.job, self.base, self.steps, self.updates))
        self.saved = directory

    def load(self, directory: Path) -> None:
        """Load a checkpoint, from which training continues."""
        checkpoint = read_record(directory, make_record(self.job, self.base))
        try:
            if self.critic is not None:
                self.notes += self.critic.load(directory)
            self.group.load_checkpoint(str(directory))
        except UnpicklingError as error:  # Ray's error of a rank inherits from the rank's own
            raise BadCheckpoint(
                f"The checkpoint {directory} has a file with other objects than tensors and "
                "numbers, which could run code, so it was not loaded. Remove this folder; the "
                "same command then starts from the version's weights."
            ) from error
        self.steps, self.updates = checkpoint.steps, checkpoint.updates
        self.saved = directory

    def move(self, to: Place) -> None:
        """Move the models of all ranks into the memory of the GPUs or of the hosts."""
        self.group.move(to)

    def select(self, policy: str, recipe: str, checkpoint: Path | None) -> None:
        """Train another policy with the same base from now on."""
        self.job = replace(self.job, policy=policy, recipe=recipe, checkpoint=checkpoint)
        self._return_to(checkpoint)

    def _keep_finite(
        self, results: list[dict[str, float]], rows: pl.DataFrame
    ) -> tuple[list[dict[str, float]], tuple[str, ...]]:
        """Return the metrics of the steps that count, and a warning if steps were undone.

        The engine makes no step with a gradient that is not finite.
        """
        made = [metrics for metrics in results if _is_made(metrics)]
        losses = [m[name] for m in made for name in ("loss", "value_loss") if name in m]
        if made and not (all(map(isfinite, losses)) and self._predicts_finite(rows)):
            self._return_to(self.saved)
            return [], (UPDATE_UNDONE,)
        undone = len(results) - len(made)
        return made, (STEPS_UNDONE.format(undone, len(results)),) if undone else ()

    def _predicts_finite(self, rows: pl.DataFrame) -> bool:
        """Return whether the log-probabilities of one micro-batch of `rows` are finite."""
        lengths = rows["prompt_ids"].list.len() + rows["response_ids"].list.len()
        fitting = (lengths.cum_sum() <= self.job.tokens_per_micro_batch).to_list().count(True)
        some = rows.head(max(1, fitting))
        is_finite = all(bool(x.isfinite().all()) for x in self.inference.log_probs(some))
        return is_finite and (self.critic is None or self.critic.predicts_finite(some))

    def _return_to(self, checkpoint: Path | None) -> None:
        """Load a checkpoint, or without one the base."""
        if checkpoint is not None:
            self.load(checkpoint)
            return
        self.group.restart()
        if self.critic is not None:
            self.critic.restart()
        self.steps, self.updates, self.saved = 0, 0, None

    def _run_optimizer_step(
        self,
        rows: pl.DataFrame,
        objective: Objective,
        names: Mapping[str, str | int],
        measured: Mapping[str, float],
    ) -> dict[str, float]:
        """Make an optimizer step over `rows` in a span; return its and the `measured` metrics."""
        with self.tracer.start_as_current_span(attributes.SPAN_STEP, attributes=names) as span:
            metrics = {**measured} | self._train(rows, objective)
            undone = not _is_made(metrics)
            self.steps += not undone
            record_step(span, self.steps, rows, metrics, undone=undone)
        return metrics

    def _train(self, rows: pl.DataFrame, objective: Objective) -> dict[str, float]:
        """Train the critic and then the policy, unless the critic's gradient is not finite."""
        critic = self._critic_of(objective)
        step_batch = self._make_batch(rows)
        data = engine.as_training_batch(step_batch.data, objective)
        metrics = {} if critic is None else critic.train(data)
        if objective.trains_policy and _is_made(metrics):
            metrics |= engine.read_metrics(self.group.train_batch(data).get())
        return metrics | {"computed_tokens": step_batch.computed_tokens}

    def _compare_policies(
        self,
        steps_rows: list[pl.DataFrame],
        objective: Objective,
        version: int,
        versions: Mapping[int, Reference],
    ) -> tuple[list[pl.DataFrame], dict[str, float], tuple[str, ...]]:
        """Compare the policy with the server and the reference before anything is trained.

        Return the rows with the columns that the objective needs, the metrics and the warnings.
        """
        if not steps_rows:
            return steps_rows, {}, ()
        metrics = {"learning_rate": objective.learning_rate}
        if objective.kind == "sft":
            return steps_rows, metrics, ()
        rows = pl.concat(steps_rows)
        old, entropy = map(flatten, self.inference.values(rows, "log_probs", "entropy"))
        drift = measure_drift(rows, old, version=version, outlier=objective.drift_outlier)
        warning = check_drift(drift, objective, version)
        metrics |= drift.metrics() | {"entropy": weighted_mean(rows, entropy)}
        infer = partial(self.inference.of_version, versions)
        rows, rendered_metrics, notes = rendered_rows.score_rendered(
            rows, old, entropy, infer, version=version, limit=objective.drift_limit
        )
        metrics |= rendered_metrics
        if objective.kl_coefficient:
            reference = flatten(self.inference.of_reference(rows))
            rows, kl_metrics = comparison.apply_reference(rows, old, reference, objective)
            metrics |= kl_metrics
        if (critic := self._critic_of(objective)) is not None:
            rows, critic_metrics = critic.add_advantages(rows, objective)
            metrics |= critic_metrics
        rows, correction_metrics = comparison.apply_correction(rows, old, objective)
        rows, rejection_metrics = comparison.apply_rejection(rows, old, objective)
        metrics |= correction_metrics | rejection_metrics
        kept, rejected = comparison.keep_weighted(rows, steps_rows, objective)
        return kept, metrics, tuple(filter(None, (warning, *notes, rejected)))

    def _critic_of(self, objective: Objective) -> CriticTraining | None:
        """Return the critic that computes the advantages of an objective, if one does."""
        if objective.critic is None or objective.kind == "sft":
            return None
        if self.critic is None:
            raise BadBase(
                "The objective needs a critic, and this learner has loaded none. Start it with a "
                "recipe that has [train.critic]."
            )
        return self.critic

    def _take_notes(self) -> tuple[str, ...]:
        notes, self.notes = self.notes, ()
        return notes

    def _read_rows(
        self,
        samples: Path,
        kind: Kind = "rl",
        *,
        critic: bool = False,
        versions: Collection[int] = (),
    ) -> pl.DataFrame:
        rows = read_rows(
            samples, vocab_size=self.vocab_size, kind=kind, critic=critic, versions=versions
        )
        rows, refused = batch.leave_out_refused(rows, self.job.base)
        if refused:
            self.notes += (
                IDS_REFUSED.format(
                    "1 constrained call was"
                    if refused == 1
                    else f"{refused} constrained calls were"
                ),
            )
        return rows

    def _make_batch(self, rows: pl.DataFrame) -> batch.StepBatch:
        tokens, shared = self.batch_tokens, self.shared
        return batch.make_batch(rows, ranks=self.job.parts, tokens=tokens, shared=shared)


def _is_made(metrics: Mapping[str, float]) -> bool:
    """Return whether the gradients of an optimizer step are finite, so that the engine made it."""
    norms = (metrics[name] for name in ("grad_norm", "critic_grad_norm") if name in metrics)
    return all(map(isfinite, norms))
