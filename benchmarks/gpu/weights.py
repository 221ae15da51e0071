"""Yields the seconds that calls wait for new weights of a model of 1.5 billion parameters.

Versions of the disk are loaded first. Then a learner trains an adapter, and its merged weights
reach vLLM as files and from the learner's memory, in turn.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from benchmarks.gpu.serving import POLICY, served
from benchmarks.gpu.stage import Check, Row
from benchmarks.step import write_model
from benchmarks.support.releases import releases

from ltrain_train.policy import weights_size

SHAPE = "qwen2.5-1.5b"
LOADS = 3
ROUNDS, RANK = 2, 16
"""Versions of a learner in each of the ways, and the rank of its adapter: it fits beside vLLM."""
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
        home = check.folder / "home"
        for each in releases(servers.gateway, home, POLICY, rounds=ROUNDS, lora_rank=RANK):
            yield Row(f"{each.way}: checkpoint to served", each.served, "s")
            yield Row(f"{each.way}: calls waited", each.waited, "s")


def write_large_model(check: Check) -> Path:
    """Write random weights with the tokenizer of the small model, and return their directory."""
    folder = check.folder / "large"
    write_model(folder, SHAPE, "tree")
    torch.cuda.empty_cache()  # for vLLM
    for file in check.model.glob("*token*"):
        shutil.copy(file, folder)
    shutil.copy(check.model / "chat_template.jinja", folder)
    return folder
