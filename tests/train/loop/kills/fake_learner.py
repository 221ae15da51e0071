"""A fake learner at the process border: it answers the requests of `LearnerClient`.

Its weights are the list of the rollouts that it was trained on, in order. Checkpoints, adapters and
models hold this list in the header of their weights, so that a test reads what a version was really
trained on. As a program it takes the descriptors of the two pipes, as the learner's service does.
"""

import json
import os
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from ltrain_instrument.files import replace_directory
from ltrain_train.learner.checkpoint import RECORD_FILE, fingerprint, make_record, write_record
from ltrain_train.learner.protocol import Job, decode_job, encode_line
from ltrain_transforms.policy_lineage import rollout_name

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


class FakeLearner:
    """One learner; each method answers the request of its name."""

    job: Job
    trained: list[str]
    updates: int

    def start(self, **arguments: Any) -> None:
        self.job = decode_job(arguments)
        checkpoint = self.job.checkpoint
        self.trained = read_trained(checkpoint or self.job.base)
        self.updates = 0
        if checkpoint is not None:
            self.updates = json.loads((checkpoint / RECORD_FILE).read_text())["updates"]

    def step(self, samples: str, **_: Any) -> dict[str, Any]:
        rows = pl.scan_parquet(samples).select(rollout_name()).collect().to_series()
        time.sleep(SECONDS)
        self.trained += rows.unique().sort().to_list()
        self.updates += 1
        return {
            **{"metrics": {"loss": 0.0}, "rows": len(rows), "tokens": len(rows)},
            **{"trained_tokens": len(rows), "steps": 1, "total_steps": self.updates},
            **{"seconds": SECONDS, "undone": 0, "warnings": ()},
        }

    def save(self, directory: str) -> None:
        with replace_directory(Path(directory)) as draft:
            write_weights(draft / "model.safetensors", {"layer.weight": SHAPE}, self.trained)
            base = fingerprint(self.job.base)
            write_record(draft, make_record(self.job, base, self.updates, self.updates))

    def export(self, directory: str, **_: Any) -> None:
        with replace_directory(Path(directory)) as draft:
            write_model(draft, self.trained)

    def export_adapter(self, directory: str) -> None:
        rank, name = self.job.lora_rank, "base_model.model.layer"
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": self.job.lora_alpha}
        shapes = {
            f"{name}.lora_A.weight": (rank, SHAPE[1]),
            f"{name}.lora_B.weight": (SHAPE[0], rank),
        }
        with replace_directory(Path(directory)) as draft:
            (draft / "adapter_config.json").write_text(json.dumps(config))
            write_weights(draft / "adapter_model.safetensors", shapes, self.trained)


def serve(requests: int, answers: int) -> None:
    """Answer requests until they end."""
    learner = FakeLearner()
    with open(requests, "rb") as lines:
        for line in lines:
            arguments = json.loads(line)
            result = getattr(learner, arguments.pop("do"))(**arguments)
            os.write(answers, encode_line({"ok": result}))


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
