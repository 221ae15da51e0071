"""A fake backend of the learner: `LTRAIN_LEARNER_BACKEND=fake_backend` selects it.

Its weights are the list of the rollouts that it was trained on, in order. Checkpoints, adapters and
models hold this list in the header of their weights, so that a test reads what a version was really
trained on.

Its GPU is a lock on the file FAKE_GPU, as that of the fake vLLM. It does nothing without the lock,
and fails if another process holds it.
"""

import fcntl
import json
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from opentelemetry.trace import Tracer

from ltrain_instrument.files import replace_directory
from ltrain_train.learner.backend import Trainer
from ltrain_train.learner.checkpoint import RECORD_FILE, fingerprint, make_record, write_record
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.protocol import Job, Place, StepReport
from ltrain_train.learner.samples import Kind
from ltrain_train.policy import Reference
from ltrain_transforms.policy_lineage import rollout_name

GPU = os.environ.get("FAKE_GPU")
SHAPE = (4, 4)
"""Of the model's only weight, `layer.weight`."""
SECONDS = float(os.environ.get("FAKE_LEARNER_SECONDS", "0.2"))
"""Seconds of an update."""


def write_weights(file: Path, shapes: Mapping[str, tuple[int, int]], trained: list[str]) -> None:
    """Write tensors of zeros; the header has the rollouts that they were trained on."""
    header: dict[str, Any] = {"__metadata__": {"trained": json.dumps(trained)}}
    end = 0
    for name, (rows, columns) in shapes.items():
        size = rows * columns
        offsets = [end, end := end + size]
        header[name] = {"dtype": "U8", "shape": (rows, columns), "data_offsets": offsets}
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def read_trained(folder: Path) -> list[str]:
    """Return the rollouts that the weights in a folder were trained on, in order."""
    [file] = folder.glob("*.safetensors")
    with file.open("rb") as weights:
        (size,) = struct.unpack("<Q", weights.read(8))
        header = json.loads(weights.read(size))
    rollouts: list[str] = json.loads(header["__metadata__"]["trained"])
    return rollouts


def write_model(folder: Path, trained: list[str]) -> Path:
    """Write a model directory, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    write_weights(folder / "model.safetensors", {"layer.weight": SHAPE}, trained)
    return folder


class FakeTrainer:
    """The policy in training."""

    trained: list[str]
    updates: int

    def __init__(self, job: Job) -> None:
        self.job = job
        self._gpu = os.open(GPU, os.O_RDWR | os.O_CREAT) if GPU else os.memfd_create("gpu")
        self.move("gpu")
        self.select(job.policy, job.recipe, job.checkpoint)

    def move(self, to: Place) -> None:
        self._on_gpu = to == "gpu"
        try:
            fcntl.flock(self._gpu, fcntl.LOCK_EX | fcntl.LOCK_NB if self._on_gpu else fcntl.LOCK_UN)
        except BlockingIOError:
            raise MemoryError("CUDA out of memory") from None

    def _require_gpu(self) -> None:
        if not self._on_gpu:
            raise RuntimeError("the model is not in the GPU's memory")

    def step(
        self,
        samples: Path,
        objective: Objective,
        *,
        version: int,
        dataset: str,
        versions: Mapping[int, Reference],
    ) -> StepReport:
        self._require_gpu()
        rows = pl.scan_parquet(samples).select(rollout_name()).collect().to_series()
        time.sleep(SECONDS)
        self.trained += rows.unique().sort().to_list()
        self.updates += 1
        count = len(rows)
        return StepReport(
            metrics={"loss": 0.0}, rows=count, tokens=count, trained_tokens=count, steps=1,
            total_steps=self.updates, seconds=SECONDS,
        )  # fmt: skip

    def log_probs(self, samples: Path, kind: Kind = "rl") -> list[list[float]]:
        lengths = pl.read_parquet(samples)["response_ids"].list.len()
        return [[0.0] * length for length in lengths]

    def save(self, directory: Path) -> None:
        self._require_gpu()
        with replace_directory(directory) as draft:
            write_weights(draft / "model.safetensors", {"layer.weight": SHAPE}, self.trained)
            base = fingerprint(self.job.base)
            write_record(draft, make_record(self.job, base, self.updates, self.updates))

    def load(self, directory: Path) -> None:
        self._require_gpu()
        self.trained = read_trained(directory)
        self.updates = json.loads((directory / RECORD_FILE).read_text())["updates"]

    def share(self, *, dtype: str) -> None:
        return None

    def unshare(self) -> None:
        pass

    def export(self, directory: Path, *, dtype: str, shared: bool = False) -> None:
        self._require_gpu()
        with replace_directory(directory) as draft:
            write_model(draft, self.trained)

    def export_adapter(self, directory: Path) -> None:
        self._require_gpu()
        rank, name = self.job.lora_rank, "base_model.model.layer"
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": self.job.lora_alpha}
        shapes = {
            f"{name}.lora_A.weight": (rank, SHAPE[1]),
            f"{name}.lora_B.weight": (SHAPE[0], rank),
        }
        with replace_directory(directory) as draft:
            (draft / "adapter_config.json").write_text(json.dumps(config))
            write_weights(draft / "adapter_model.safetensors", shapes, self.trained)

    def select(self, policy: str, recipe: str, checkpoint: Path | None) -> None:
        self.job = replace(self.job, policy=policy, recipe=recipe, checkpoint=checkpoint)
        self.trained, self.updates = read_trained(self.job.base), 0
        if checkpoint is not None:
            self.load(checkpoint)


def environment(job: Job) -> dict[str, str]:
    return {}


def start(job: Job, tracer: Tracer) -> FakeTrainer:
    return FakeTrainer(job)


def describe_error(error: Exception, trainer: Trainer | None) -> str:
    return str(error)


def stop() -> None:
    pass
