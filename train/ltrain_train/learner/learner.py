"""One policy in training: rows in, optimizer steps, weights and checkpoints out.

It needs a running cluster; the process around it is `ltrain_train.learner.service`.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from opentelemetry.trace import Tracer

from ltrain_instrument import attributes
from ltrain_train.learner import batch, engine, loss
from ltrain_train.learner.checkpoint import fingerprint, read_record, record, write_record
from ltrain_train.learner.errors import BadSamples
from ltrain_train.learner.messages import Job, StepReport
from ltrain_train.learner.samples import Row, Rows, deal, read_rows
from ltrain_train.learner.weights import (
    checkpoint_size,
    copy_rest,
    export_size,
    vocabulary,
    whole,
)

STALE = "stale"
"""Why a row is left out here: it was sampled too many versions ago."""


class Learner:
    def __init__(self, job: Job, port: int, tracer: Tracer) -> None:
        loss.check(job.train.loss, job.train.loss_weighting)
        self.job, self.tracer = job, tracer
        self.base, self.words = fingerprint(job.base), vocabulary(job.base)
        self.shared = engine.shares(job)
        self.steps = self.updates = 0
        self.group = engine.worker_group(job, port)
        self.group.set_loss_fn(loss.WeightedLoss(job.train.loss, engine.loss_config(job.train)))
        if job.checkpoint is not None:
            self.load(job.checkpoint)

    def step(self, samples: Path, *, version: int, dataset: str) -> StepReport:
        """Make one update: every fresh row once, in `steps_per_wave` optimizer steps.

        Raises:
            BadSamples: when the rows cannot be trained on; nothing has been trained then.
        """
        began = time.monotonic()
        train = self.job.train
        rows = self._read(samples, version)
        parts = list(deal(rows.fresh, train.steps_per_wave, f"{self.job.seed}.{self.updates}"))
        if any(sum(map(batch.total_weight, part)) == 0 for part in parts):
            raise BadSamples(f"{samples}: an optimizer step would have no token with a weight.")
        corrected, seen = self._correct(parts)
        stamps: dict[str, str | int] = {
            attributes.POLICY_NAME: self.job.policy,
            attributes.POLICY_VERSION: version,
            attributes.DATASET_ID: dataset,
            attributes.RECIPE_DIGEST: self.job.recipe,
        }
        metrics = [seen | self._optimize(part, stamps) for part in corrected]
        self.updates += 1
        return StepReport(
            metrics={name: sum(m[name] for m in metrics) / len(metrics) for name in metrics[0]}
            if metrics
            else {},
            rows=len(rows.fresh),
            tokens=sum(map(len, rows.fresh)),
            trained_tokens=sum(sum(row.mask) for row in rows.fresh),
            steps=len(parts),
            total_steps=self.steps,
            seconds=time.monotonic() - began,
            dropped={STALE: len(rows.stale)} if rows.stale else {},
            stale=rows.stale,
        )

    def log_probs(self, samples: Path) -> list[list[float]]:
        """Give the log-probabilities of each row's response tokens under the weights of now."""
        return [x.tolist() for x in self._log_probs(self._read(samples, version=0).fresh)]

    def export(self, directory: Path, *, dtype: str) -> None:
        """Write the policy as a model directory that transformers and vLLM load, merged."""
        with whole(directory, "the new version", export_size(self.job.base, dtype)) as draft:
            copy_rest(self.job.base, draft, dtype)
            self.group.export(draft, dtype)

    def save(self, directory: Path) -> None:
        """Write a checkpoint."""
        size = checkpoint_size(self.job.base, self.job.train.lora_rank)
        with whole(directory, "the checkpoint", size) as draft:
            self.group.save_checkpoint(str(draft))
            write_record(draft, record(self.job, self.base, self.steps, self.updates))

    def load(self, directory: Path) -> None:
        """Go on from a checkpoint.

        Raises:
            BadCheckpoint: when it does not fit.
        """
        found = read_record(directory, record(self.job, self.base))
        self.group.load_checkpoint(str(directory))
        self.steps, self.updates = found.steps, found.updates

    def _optimize(self, rows: list[Row], stamps: Mapping[str, str | int]) -> dict[str, float]:
        """Make one optimizer step over `rows`, under a span of its own."""
        with self.tracer.start_as_current_span(attributes.SPAN_STEP, attributes=stamps) as span:
            made = self._batch(rows)
            metrics = engine.metrics_of(self.group.train_batch(made.data).get())
            metrics["computed_tokens"] = made.computed
            self.steps += 1
            said = {"step": self.steps, "rows": len(rows), "tokens": sum(map(len, rows))}
            for name, value in (said | metrics).items():
                span.set_attribute(attributes.TRAIN + name, value)
        return metrics

    def _correct(self, parts: list[list[Row]]) -> tuple[list[list[Row]], dict[str, float]]:
        """Give the rows their old log-probabilities and the capped ratio, where the recipe asks."""
        rows = [row for part in parts for row in part]
        if self.job.train.correction == "bypass" or not rows:
            return parts, {}
        old = self._log_probs(rows)
        ratio = torch.cat(old) - torch.tensor([x for row in rows for x in row.logprobs])
        mask = torch.tensor([[x for row in rows for x in row.mask]])
        weights, metrics = engine.truncated_ratio(
            ratio.unsqueeze(0), mask, self.job.train.correction_cap
        )
        cut = torch.split(weights[0], [len(row.response) for row in rows])
        new = iter(
            replace(row, old=o.tolist(), correction=c.tolist())
            for row, o, c in zip(rows, old, cut, strict=True)
        )
        return [[next(new) for _ in part] for part in parts], metrics

    def _log_probs(self, rows: list[Row]) -> list[torch.Tensor]:
        made = self._batch(rows)
        answer = self.group.infer_batch(engine.only_forward(made.data)).get()
        return batch.response_log_probs(answer, made)

    def _read(self, samples: Path, version: int) -> Rows:
        oldest = self.job.train.max_staleness
        return read_rows(samples, version=version, max_staleness=oldest, words=self.words)

    def _batch(self, rows: list[Row]) -> batch.Batch:
        tokens = self.job.train.tokens_per_micro_batch
        return batch.make_batch(rows, ranks=self.job.ranks, tokens=tokens, shared=self.shared)
