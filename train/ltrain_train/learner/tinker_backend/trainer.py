"""Trains one policy at a server of the Tinker API, with one request after the other."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from numpy.typing import NDArray
from opentelemetry.trace import Tracer
from tinker import types

from ltrain_instrument import attributes
from ltrain_train.errors import BadCheckpoint, BadRun, LostRun
from ltrain_train.learner.adapter import merge_adapter
from ltrain_train.learner.checkpoint import fingerprint, make_record, read_record, write_record
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
    split_values,
    split_weighted,
)
from ltrain_train.learner.samples import Kind, flat_values, read_rows
from ltrain_train.learner.tinker_backend.aggregation import (
    Aggregation,
    gradient_norm,
    measure_aggregation,
)
from ltrain_train.learner.tinker_backend.archive import download_adapter
from ltrain_train.learner.tinker_backend.datums import (
    make_datums,
    read_log_probs,
    require_plain,
)
from ltrain_train.learner.tinker_backend.journal import Journal
from ltrain_train.learner.tinker_backend.losses import CURRENT, Compared, compare, make_loss
from ltrain_train.learner.tinker_backend.run import (
    ServerState,
    TrainingRun,
    read_state,
    write_state,
)
from ltrain_train.learner.tinker_backend.server import Server
from ltrain_train.learner.weights import atomic_directory, read_vocab_size
from ltrain_train.policy import (
    Reference,
    TinkerWeights,
    adapter_size,
    read_config,
    read_tinker_weights,
)

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""AdamW's defaults in the backend verl."""
ONE_IN_BF16 = 1 - 2**-9
"""The least number that bfloat16 rounds to 1."""
NOT_CLIPPED = (
    "The norm of the gradient was up to {:.3g}, above train.gradient_clip = {:g}, and the Tinker "
    "server does not limit it."
)
MADE_AGAIN = (
    "The Tinker server had lost the training run, so the update was made again from the last "
    "checkpoint."
)
RECORD_BYTES = 1 << 16
"""Bytes of a checkpoint's folder; the weights are at the server."""


class TinkerTrainer:
    """One policy in training."""

    run: TrainingRun

    def __init__(self, job: Job, tracer: Tracer) -> None:
        if job.tinker is None:
            raise BadRun("The backend tinker needs a job with a server.")
        self.job, self.tracer = job, tracer
        self.base, self.vocab_size = fingerprint(job.base), read_vocab_size(job.base)
        self.server = Server(job.tinker, _base_model(job), job.scratch)
        self.betas = _read_betas(job, clips=self.server.clips)
        self.journal = Journal(job.journal)
        self.epsilon = EPSILON
        self.aggregation: Aggregation | None = None
        self.steps = self.updates = 0
        self.saved: Path | None = None
        """The checkpoint that was written or loaded last."""
        self.state_path: str | None = None
        """Its path at the server."""
        self.unsaved = 0
        """Updates since then."""
        for left in self.journal.open_runs(self.server.name):
            self.server.unload(left)
            self.journal.write("unload", run=left)
        self._opened = False
        self._return_to(job.checkpoint)

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

        If the server has lost the training run, the update is made again from the last checkpoint.
        """
        began = time.monotonic()
        rows = self._read_rows(samples, objective.kind)
        seed = f"{self.job.seed}.{self.updates}"
        steps_rows = split_weighted(rows, objective.steps_per_wave, seed, samples)
        names = step_attributes(self.job, version, dataset)
        try:
            compared, results = self._update(steps_rows, objective, version, names)
            again: tuple[str, ...] = ()
        except LostRun:
            if self.unsaved:
                raise  # updates that no checkpoint has are lost with the run
            self.server.reopen()
            self._return_to(self.saved)
            compared, results = self._update(steps_rows, objective, version, names)
            again = (MADE_AGAIN,)
        made, undone = self._keep_finite(results, rows)
        self.updates += bool(made)
        self.unsaved += bool(made)
        return StepReport(
            metrics=update_metrics(made, results, compared.metrics),
            rows=rows.height,
            tokens=count_tokens(rows),
            trained_tokens=sum(map(count_trained, compared.steps)),
            steps=len(made),
            total_steps=self.steps,
            seconds=time.monotonic() - began,
            undone=len(results) - len(made),
            warnings=(
                *again,
                *compared.warnings,
                *undone,
                *self._describe_norms(made, objective),
                *self.server.waits.take(),
            ),
        )

    def log_probs(self, samples: Path, kind: Kind = "rl") -> list[list[float]]:
        """Return the log-probabilities of each row's response tokens under the current weights."""
        rows = self._read_rows(samples, kind)
        return [each.tolist() for each in split_values(rows, self._log_probs(rows))]

    def save(self, directory: Path) -> None:
        """Save the run at the server, and write the path as a checkpoint."""
        path = self.run.save(self._new_name())
        with atomic_directory(directory, "the checkpoint", RECORD_BYTES) as draft:
            assert self.aggregation is not None
            write_state(
                draft,
                ServerState(self.server.name, self.server.model, path, self.aggregation),
            )
            write_record(draft, make_record(self.job, self.base, self.steps, self.updates))
        self.saved, self.state_path, self.unsaved = directory, path, 0

    def load(self, directory: Path) -> None:
        """Continue from a checkpoint, in a new training run."""
        record = read_record(directory, make_record(self.job, self.base))
        state = read_state(directory, self.server.name, self.server.model)
        try:
            self._open(lambda: TrainingRun.restore(self.server, self.journal, state.path))
        except LostRun as error:
            raise BadCheckpoint(
                f"The Tinker server no longer has {state.path}, the weights of the checkpoint "
                f"{directory}. Restore them at the server, or start a new policy."
            ) from error
        self.aggregation = state.aggregation
        self.steps, self.updates = record.steps, record.updates
        self.saved, self.state_path, self.unsaved = directory, state.path, 0

    def export_adapter(self, directory: Path) -> None:
        """Write the adapter as it was trained, in PEFT's layout."""
        size = 2 * adapter_size(self.job.base, self.job.lora_rank)
        path = self.run.save_sampler(self._new_name())
        url = self.server.archive_url(path)
        with atomic_directory(directory, "the new version", size) as draft:
            download_adapter(url, draft, self.job.base, self.job.lora_rank)
            weights = TinkerWeights(
                base_model=self.server.model, sampler=path, state=self.state_path
            )
            weights.write(draft)

    def export(self, directory: Path, *, dtype: str, shared: bool = False) -> None:
        """Write the policy, adapter merged, as a model directory for transformers and vLLM."""
        with TemporaryDirectory(dir=directory.parent, prefix=".adapter-") as folder:
            adapter = Path(folder) / "adapter"
            self.export_adapter(adapter)
            merge_adapter(self.job.base, adapter, directory, dtype)

    def share(self, *, dtype: str) -> None:
        """Return None: the weights are at the server."""
        return None

    def unshare(self) -> None:
        """Do nothing: no memory is shared."""

    def move(self, to: Place) -> None:
        """Do nothing: the server's memory is its own."""

    def select(self, policy: str, recipe: str, checkpoint: Path | None) -> None:
        """Train another policy with the same base from now on."""
        self.job = replace(self.job, policy=policy, recipe=recipe, checkpoint=checkpoint)
        self._return_to(checkpoint)

    def close(self) -> None:
        """Release the training run, whose state is in the last checkpoint, and the session."""
        self._release()
        self.server.close()

    def _release(self) -> None:
        if self._opened:
            self._opened = False
            self.run.unload()

    def _return_to(self, checkpoint: Path | None) -> None:
        """Load a checkpoint, or without one create a new adapter."""
        if checkpoint is not None:
            return self.load(checkpoint)
        if self.aggregation is None:
            self._open(self._create)
            self.aggregation = measure_aggregation(self.run)
        self._open(self._create)
        self.steps, self.updates, self.unsaved = 0, 0, 0
        self.saved = self.state_path = None

    def _create(self) -> TrainingRun:
        rank, seed = self.job.lora_rank, self.job.seed
        return TrainingRun.create(self.server, self.journal, rank, seed)

    def _open(self, create: Callable[[], TrainingRun]) -> None:
        """Replace the training run; a server may have only one place."""
        self._release()
        self.run = create()
        self._opened = True

    def _update(
        self,
        steps_rows: list[pl.DataFrame],
        objective: Objective,
        version: int,
        names: Mapping[str, str | int],
    ) -> tuple[Compared, list[dict[str, float]]]:
        """Make the optimizer steps, and return their metrics."""
        rows = pl.concat(steps_rows)
        compared = compare(steps_rows, self._log_probs(rows), objective, version)
        results = []
        for number, step_rows in enumerate(compared.steps):
            with self.tracer.start_as_current_span(attributes.SPAN_STEP, attributes=names) as span:
                current = flat_values(step_rows, CURRENT)
                if number:  # the weights are other ones
                    current = self._log_probs(step_rows)
                metrics = compared.metrics | self._train(step_rows, current, objective)
                undone = not _is_finite(metrics)
                self.steps += not undone
                record_step(span, self.steps, step_rows, metrics, undone=undone)
            results.append(metrics)
            if undone:
                break
        return compared, results

    def _train(
        self, rows: pl.DataFrame, current: NDArray[np.float32], objective: Objective
    ) -> dict[str, float]:
        """Make an optimizer step, unless the loss is not finite, and return its metrics."""
        loss = make_loss(rows, current, objective)
        metrics = loss.metrics | {"computed_tokens": 2 * (count_tokens(rows) - rows.height)}
        if not (isfinite(loss.metrics["loss"]) and np.isfinite(loss.advantages).all()):
            return metrics | {"grad_norm": float("nan")}
        assert self.aggregation is not None
        masks = split_values(rows, flat_values(rows, "response_mask"))
        counts = np.array([int(each.sum()) for each in masks])
        lengths = rows["response_ids"].list.len().to_numpy()
        factors = np.repeat(self.aggregation.factors(counts), lengths)
        data = make_datums(rows, logprobs=loss.log_probs, advantages=loss.advantages * factors)
        self.run.forward_backward(data, loss.name, loss.options)
        norm = gradient_norm(self.run.optim_step(self._parameters(objective)))
        return metrics if norm is None else metrics | {"grad_norm": norm}

    def _parameters(self, objective: Objective) -> types.AdamParams:
        beta1, beta2 = self.betas
        return types.AdamParams(
            learning_rate=objective.learning_rate,
            beta1=beta1,
            beta2=beta2,
            eps=self.epsilon,
            weight_decay=self.job.verl.optimizer.weight_decay or 0.0,
            grad_clip_norm=objective.gradient_clip,
        )

    def _keep_finite(
        self, results: list[dict[str, float]], rows: pl.DataFrame
    ) -> tuple[list[dict[str, float]], tuple[str, ...]]:
        """Return the metrics of the steps, or after a number that is not finite, of none.

        Then the run returns to the last checkpoint: the server may have made the step.
        """
        some = rows.head(1)
        if all(map(_is_finite, results)) and np.isfinite(self._log_probs(some)).all():
            return results, ()
        self._return_to(self.saved)
        return [], (UPDATE_UNDONE,)

    def _describe_norms(
        self, made: list[dict[str, float]], objective: Objective
    ) -> tuple[str, ...]:
        """Return a warning if the server left a gradient above the limit."""
        norm = max((each.get("grad_norm", 0.0) for each in made), default=0.0)
        if self.server.clips or norm <= objective.gradient_clip:
            return ()
        return (NOT_CLIPPED.format(norm, objective.gradient_clip),)

    def _read_rows(self, samples: Path, kind: Kind) -> pl.DataFrame:
        rows = read_rows(samples, vocab_size=self.vocab_size, kind=kind)
        require_plain(rows, samples)
        return rows

    def _log_probs(self, rows: pl.DataFrame) -> NDArray[np.float32]:
        """Return the log-probabilities of all response tokens under the current weights."""
        return read_log_probs(self.run.forward(make_datums(rows)), rows)

    def _new_name(self) -> str:
        """Return a name for saved weights, which no other weights have."""
        policy = re.sub(r"[^A-Za-z0-9_-]", "-", self.job.policy)
        return f"{policy}-{self.updates}-{token_hex(4)}"


def _base_model(job: Job) -> str:
    """Return the server's name of the base: that of the recipe, or of the model's folder."""
    weights = read_tinker_weights(job.base)
    name = job.tinker.base_model if job.tinker is not None else None
    if name is None and weights is None:
        raise BadRun(
            'backend = "tinker" needs the server\'s name of the model. Set `base_model` in '
            f"[train.tinker], or write it into the tinker.json of '{job.base}'."
        )
    return name or str(weights and weights.base_model)


def _read_betas(job: Job, *, clips: bool) -> tuple[float, float]:
    """Return AdamW's betas.

    Raises:
        BadRun: when the second one is 1 in the type in which a server of SkyRL, which does not
            clip, computes: a step would divide by 0, and spoil all adapters of the server.
    """
    betas = job.verl.optimizer.betas or BETAS
    config = read_config(job.base)
    dtype = config.get("dtype", config.get("torch_dtype"))
    if not clips and dtype == "bfloat16" and betas[1] >= ONE_IN_BF16:
        raise BadRun(
            "A server of SkyRL computes AdamW in the type of its model, and in bfloat16 the second "
            f"of `betas`, {betas[1]:g}, is 1: no step would be finite. Set `betas = [0.9, 0.99]` "
            "in [train.verl.optimizer], or serve the model in float32."
        )
    return betas


def _is_finite(metrics: Mapping[str, float]) -> bool:
    return all(isfinite(metrics[name]) for name in ("loss", "grad_norm") if name in metrics)
