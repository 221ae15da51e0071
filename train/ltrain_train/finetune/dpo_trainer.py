"""The process of `ltrain dpo`: TRL trains a model on pairs of tokens.

It reads a job from a file and writes events to a pipe, one line of JSON each: a `step`, an `epoch`,
an `error`, or `done`. The output of TRL goes to the process's own output, which is a log file.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from ltrain_train.finetune.dpo_job import DpoJob
from ltrain_train.learner import copy_model_files, merge_adapter, write_weights
from ltrain_train.processes import JsonPipes


class PairTrainer(DPOTrainer):  # type: ignore[misc]
    """TRL's trainer, for pairs whose token ids are there already."""

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset


class Events(TrainerCallback):
    """Writes an event for each optimizer step and each epoch."""

    def __init__(self, pipe: int) -> None:
        self.pipes = JsonPipes(pipe)
        self.trainer: PairTrainer | None = None
        self.losses: list[float] = []

    def write(self, **event: Any) -> None:
        """Write one event."""
        self.pipes.send(event)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Write the metrics of an optimizer step."""
        if logs and "loss" in logs:
            self.losses.append(logs["loss"])
            self.write(kind="step", metrics=_names(logs))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure the held-out pairs, and write both losses."""
        self.write_epoch(round(state.epoch))

    def write_epoch(self, number: int) -> None:
        """Write the mean loss since the last epoch, and the metrics of the held-out pairs."""
        loss = sum(self.losses) / len(self.losses) if self.losses else None
        self.losses.clear()
        held_out = {}
        if self.trainer is not None and self.trainer.eval_dataset is not None:
            held_out = _names(self.trainer.evaluate())
        self.write(kind="epoch", number=number, loss=loss, held_out=held_out)


def _names(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return TRL's metrics by ltrain's names, as `margin` for `eval_rewards/margins`."""
    names = {"margins": "margin", "accuracies": "accuracy"}
    short = {name.removeprefix("eval_").removeprefix("rewards/"): value for name, value in
             logs.items()}  # fmt: skip
    return {names.get(k, k).replace("/", "_"): float(v) for k, v in short.items()}


def train(job: DpoJob, events: Events) -> None:
    """Train, and write the adapter, the merged weights, or all weights to `job.out`."""
    lora = job.lora_rank > 0
    half = job.dtype == "bf16" and torch.cuda.is_available()
    dtype = torch.bfloat16 if half and lora else torch.float32
    model: Any = AutoModelForCausalLM.from_pretrained(job.base, dtype=dtype, local_files_only=True)
    config = None
    if job.adapter is not None:
        model = PeftModel.from_pretrained(model, job.adapter, is_trainable=True)
    elif lora:
        config = LoraConfig(
            r=job.lora_rank, lora_alpha=job.lora_alpha, target_modules="all-linear", bias="none",
            task_type="CAUSAL_LM",
        )  # fmt: skip
    with TemporaryDirectory() as folder:
        trainer = PairTrainer(
            model=model,
            args=_arguments(job, folder, half=half),
            train_dataset=Dataset.from_parquet(str(job.pairs), cache_dir=folder),
            eval_dataset=_held_out(job, folder),
            processing_class=AutoTokenizer.from_pretrained(job.base, local_files_only=True),
            peft_config=config,
            callbacks=[events],
        )
        events.trainer = trainer
        events.write_epoch(0)
        trainer.train()
    _require_finite(trainer.model)
    _write(job, trainer.model)
    events.write(kind="done")


def _arguments(job: DpoJob, folder: str, *, half: bool) -> DPOConfig:
    batch = min(job.micro_batch, job.pairs_per_step)
    return DPOConfig(
        output_dir=folder,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=batch,
        gradient_accumulation_steps=math.ceil(job.pairs_per_step / batch),
        learning_rate=job.learning_rate,
        num_train_epochs=job.epochs,
        beta=job.beta,
        max_grad_norm=job.gradient_clip,
        weight_decay=0.0,
        lr_scheduler_type="constant",
        max_length=None,
        gradient_checkpointing=torch.cuda.is_available(),
        bf16=half,
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=job.seed,
    )


def _held_out(job: DpoJob, folder: str) -> Dataset | None:
    if job.held_out is None:
        return None
    return Dataset.from_parquet(str(job.held_out), cache_dir=folder)


def _require_finite(model: Any) -> None:
    bad = [name for name, each in model.named_parameters() if not each.isfinite().all()]
    if bad:
        raise ArithmeticError(
            f"{len(bad)} tensors have numbers that are not finite, {bad[0]} for example. Lower "
            "dpo.learning_rate"
        )


def _write(job: DpoJob, model: Any) -> None:
    if not job.lora_rank:
        job.out.mkdir(parents=True)
        copy_model_files(job.base, job.out, job.dtype)
        write_weights(job.out, model.state_dict().items(), dtype=job.dtype, write=True)
        return
    adapter = job.out.with_name(f"{job.out.name}.adapter") if job.merged else job.out
    model.save_pretrained(adapter, selected_adapters=["default"], save_embedding_layers=False)
    (adapter / "README.md").unlink(missing_ok=True)
    if job.merged:
        merge_adapter(job.base, adapter, job.out)


def main(file: str, pipe: int) -> None:
    """Run the job in a file."""
    events = Events(pipe)
    try:
        train(DpoJob.read(Path(file)), events)
    except Exception as error:  # TRL and torch raise anything; the log has the traceback
        events.write(kind="error", error=f"{type(error).__name__}: {error}")
        raise
