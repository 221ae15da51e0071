"""The backends verl and tinker on the same rows of SmolLM2 in fp32: loss, gradient, changes."""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from benchmarks.support.skyrl import KEY, PYTHON, SkyRL
from numpy.typing import NDArray
from opentelemetry.trace import NoOpTracer
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from ltrain_train.learner import Job, LearnerClient, Objective, StepReport, find_backend
from ltrain_transforms.recipe import Train
from ltrain_transforms.tables import SAMPLES

MODEL = Path(".ltrain/models/smollm2")
RANK, ALPHA = 8, 32
"""Of the adapter; a server of SkyRL has this scale."""
EPSILON = 1.0
"""With it the first step of AdamW is one of SGD, so that small gradients count little."""
BARS = {"loss": 1e-3, "grad_norm": 1e-2}
"""The largest relative differences."""
COSINE = 0.999
"""The smallest cosine of the changes of the adapter, and of the log-probabilities."""
ROWS = (
    ("Name a colour.", "Blue is a colour that many people like."),
    ("Name a colour.", "I do not know."),
    ("What is 2 + 3?", "The answer is 5."),
    ("What is 2 + 3?", "It is 23, because both digits are written one after the other."),
    ("Say yes.", "Yes."),
    ("Say yes.", "No, I will not say that today."),
)
BACKEND = {"max_lora_adapters": 2, "max_lora_rank": RANK, "train_micro_batch_size": 4}


def write_fp32(model: Path, out: Path) -> Path:
    """Write a model in fp32, the precision in which both backends compute, and return its path."""
    out.mkdir()
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, out / file.name)
    config = json.loads((out / "config.json").read_text())
    dtypes = {"dtype": "float32", "torch_dtype": "float32"}
    (out / "config.json").write_text(json.dumps(config | dtypes))
    weights = {name: x.float() for name, x in load_file(model / "model.safetensors").items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out


def make_rows(model: Path) -> list[dict[str, Any]]:
    """Return rows of different lengths, advantages and weights."""
    tokenizer, draw = Tokenizer.from_file(str(model / "tokenizer.json")), random.Random(0)
    rows = []
    for number, (prompt, response) in enumerate(ROWS):
        turn = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        ids = tokenizer.encode(response).ids
        name, zeros = f"s{number}", [0.0] * len(ids)
        rows.append({
            "sample_id": name, "execution_id": name, "rollout_id": name, "policy": "p",
            "group_id": f"g{number // 2}", "tokens": "sampled", "temperature": 1.0,
            "prompt_ids": tokenizer.encode(turn).ids, "response_ids": ids,
            "response_mask": [1] * len(ids), "rollout_logprobs": zeros, "token_rewards": zeros,
            "advantages": [draw.uniform(-2, 2)] * len(ids),
            "loss_weight": [1 / len(ids)] * len(ids),
            "call_offsets": [0], "call_constraints": None, "call_versions": [0],
            "call_positions": [0], "next_sample_id": None, "transition_ids": [name],
        })  # fmt: skip
    return rows


def write_rows(rows: list[dict[str, Any]], file: Path) -> Path:
    """Write rows as a samples file."""
    pl.DataFrame(rows, schema=SAMPLES.schema).write_parquet(file)
    return file


def compare(url: str, model: Path, loss: str, folder: Path) -> dict[str, float]:
    """Return the relative differences and the cosines of one update by both backends."""
    shared: dict[str, Any] = {
        "loss": loss, "lora_rank": RANK, "learning_rate": 1e-3, "dtype": "fp32",
        "gradient_clip": 1e9, "drift_warning": 90.0, "drift_limit": 99.0,
    }  # fmt: skip
    server = {"base_model": str(model), "base_url": url}
    there = Train.model_validate(shared | {"backend": "tinker", "tinker": server})
    options = {"optimizer": {"override_optimizer_config": {"eps": EPSILON}}}
    here = Train.model_validate(shared | {"lora_alpha": ALPHA, "verl": options})
    rows, draw = make_rows(model), random.Random(1)
    job = replace(Job.from_train(there, base=model, policy="p"), journal=folder / "journal.jsonl")
    trainer: Any = find_backend("tinker").start(job, NoOpTracer())
    trainer.epsilon = EPSILON
    trainer.export_adapter(folder / "start")
    for row, known in zip(
        rows, trainer.log_probs(write_rows(rows, folder / "first.parquet")), strict=True
    ):
        row["rollout_logprobs"] = [value + draw.gauss(0, 0.15) for value in known]
    samples = write_rows(rows, folder / "samples.parquet")
    before = _flat(trainer.log_probs(samples))
    tinker = trainer.step(samples, Objective.from_train(there), version=0, dataset="d", versions={})
    changes = [_flat(trainer.log_probs(samples)) - before]
    trainer.export_adapter(folder / "tinker")
    trainer.close()
    with LearnerClient(
        here, model, directory=folder, policy="p", adapter=folder / "start"
    ) as learner:
        before = _flat(learner.log_probs(samples))
        verl = learner.step(samples, Objective.from_train(here), version=0)
        changes.append(_flat(learner.log_probs(samples)) - before)
        learner.export_adapter(folder / "verl")
    adapters = [_change(folder, name) for name in ("tinker", "verl")]
    differences = {name: _difference(tinker, verl, name) for name in BARS}
    return differences | {
        "cosine of log-probabilities": _cosine(*changes),
        "cosine of the adapter": _cosine(*adapters),
    }


def _flat(rows: list[list[float]]) -> NDArray[np.float64]:
    return np.concatenate([np.array(row) for row in rows])


def _change(folder: Path, name: str) -> NDArray[np.float64]:
    """Return the change of an adapter's second matrices; the first ones have no gradient yet."""
    start, end = (
        load_file(folder / each / "adapter_model.safetensors") for each in ("start", name)
    )
    names = sorted(each for each in start if "lora_B" in each)
    return np.concatenate([(end[each] - start[each]).double().numpy().ravel() for each in names])


def _difference(one: StepReport, other: StepReport, name: str) -> float:
    return abs(one.metrics[name] / other.metrics[name] - 1)


def _cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, default=PYTHON, help="with SkyRL 0.4.0")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--loss", nargs="*", default=["vanilla", "cispo", "gspo"])
    options = parser.parse_args()
    os.environ |= {"TINKER_API_KEY": KEY, "TINKER_TELEMETRY": "0"}
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        model = write_fp32(options.model, Path(folder) / "model")
        with SkyRL(model, Path(folder), BACKEND, options.python) as server:
            for loss in options.loss:
                (Path(folder) / loss).mkdir()
                found = compare(server.url, model, loss, Path(folder) / loss)
                failed |= any(found[name] > bar for name, bar in BARS.items())
                failed |= any(value < COSINE for name, value in found.items() if "cosine" in name)
                print(loss, {name: float(f"{value:.7g}") for name, value in found.items()})
    if failed:
        sys.exit(f"A difference is above {BARS}, or a cosine below {COSINE}.")


if __name__ == "__main__":
    main()
