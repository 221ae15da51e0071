"""Yields the seconds that calls wait for new weights of a model of 1.5 billion parameters."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from benchmarks.gpu.serving import POLICY, served
from benchmarks.gpu.stage import Check, Row
from benchmarks.step import write_model

from ltrain_train.policy import weights_size

SHAPE = "qwen2.5-1.5b"
LOADS = 3
SECONDS = 1.0
"""Most seconds that calls wait."""


def rows(check: Check, _: str) -> Iterator[Row]:
    """Yield the seconds of each load; the first one may compile or allocate."""
    model = check.policy_model() if check.quick else write_large_model(check)
    with served(check, model) as servers:
        yield Row("weights", weights_size(model, 2) / 1e9, "GB in bf16")
        for number in range(1, LOADS + 1):
            servers.policies.add(POLICY, model, parent=0)
            bar = check.bar(SECONDS) if number == LOADS else None
            seconds = servers.client.load(POLICY, number)
            yield Row(f"calls waited for load {number}", seconds, "s", at_most=bar)


def write_large_model(check: Check) -> Path:
    """Write random weights with the tokenizer of the small model, and return their directory."""
    folder = check.folder / "large"
    write_model(folder, SHAPE, "tree")
    torch.cuda.empty_cache()  # for vLLM
    for file in check.model.glob("*token*"):
        shutil.copy(file, folder)
    shutil.copy(check.model / "chat_template.jinja", folder)
    return folder
