"""Yields how far the learner's numbers are from plain torch on the CPU in fp32.

Both have a Llama model with random weights, four layers, and 24 rows of 300 tokens: their
log-probabilities, the norm of a gradient, and the log-probabilities after one optimizer step.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.stage import Check, Row
from benchmarks.learner import write_samples
from benchmarks.step import SHAPES, write_model

from ltrain_train.learner import LearnerClient, Objective
from ltrain_transforms.recipe import Train

REFERENCE = Path(__file__).parents[2] / "tests" / "train" / "learner" / "reference.py"
SHAPE = "four-layers"
ROWS, PROMPT, RESPONSE = 24, 200, 100
RATE = 1e-3
TOKENS = 4_096
"""Tokens of a micro-batch."""
BARS = {"fp32": 1e-4, "bf16": 0.02}
"""Most mean difference of a log-probability, and most relative one of a gradient's norm."""


def rows(check: Check, dtype: str) -> Iterator[Row]:
    """Yield the differences before and after a step of the cross-entropy of all rows."""
    model, samples = check.folder / "model", check.folder / "samples.parquet"
    write_model(model, SHAPE, "tree")
    count = 4 if check.quick else ROWS
    vocab_size = SHAPES[SHAPE]["vocab_size"]
    write_samples(samples, count, prompt=PROMPT, response=RESPONSE, vocab_size=vocab_size)
    before, after = reference(model, samples)
    keys = {"lora_rank": 0, "dtype": dtype, "learning_rate": RATE, "tokens_per_micro_batch": TOKENS}
    train = Train.model_validate(keys)
    with LearnerClient(train, model, directory=check.folder, policy="numbers") as learner:
        bar = BARS[dtype]
        yield from distances("before", learner.log_probs(samples), before["log_probs"], bar)
        objective = replace(Objective.from_train(train), kind="sft")
        report = learner.step(samples, objective, version=0)
        (norm,) = after["grad_norm"]
        distance = abs(report.metrics["grad_norm"] / norm - 1)
        yield Row("norm of the gradient, relative", distance, at_most=bar)
        yield from distances("after a step", learner.log_probs(samples), after["log_probs"], bar)


def reference(model: Path, samples: Path) -> list[dict[str, Any]]:
    """Return the results of plain torch without a step, and with one."""
    step = {"kind": "sft", "steps": 1, "lr": RATE}
    request = json.dumps([str(model), str(samples), [{}, step]])
    command = [sys.executable, str(REFERENCE)]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}  # the machine may be busy
    done = subprocess.run(
        command, input=request, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise SystemExit(answer["error"])
    results: list[dict[str, Any]] = answer["results"]
    return results


def distances(
    name: str, own: Sequence[Sequence[float]], others: Sequence[Sequence[float]], bar: float
) -> Iterator[Row]:
    """Yield the mean and the largest difference of log-probabilities, token by token."""
    differences = [
        abs(a - b)
        for row, other in zip(own, others, strict=True)
        for a, b in zip(row, other, strict=True)
    ]
    mean = sum(differences) / len(differences)
    yield Row(f"log-probabilities {name}, mean", mean, "nats", at_most=bar)
    yield Row(f"log-probabilities {name}, largest", max(differences), "nats")
