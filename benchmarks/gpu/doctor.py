"""Yields what `ltrain doctor --model` finds: the GPU, vLLM, and the ways to train the model."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.stage import Check, Row

NAMES = ("ltrain[train]", "vllm", "gpu")
"""The findings that are rows."""


def rows(check: Check, _: str) -> Iterator[Row]:
    """Yield 1 for each finding without a fault or note, else 0."""
    command = [sys.executable, "-m", "ltrain", "doctor", "--json", "--model"]
    done = subprocess.run([*command, str(check.policy_model())], stdout=subprocess.PIPE)
    found = json.loads(done.stdout)["findings"]
    for name in NAMES:
        named = next((each for each in found if each["name"] == name), None)
        if named is not None or (name, check.device) == ("gpu", "cuda"):
            yield _row(name, named, required=name != "ltrain[train]")
    for each in found:
        if each["name"] == "train":
            yield _row(each["detail"].partition(":")[0], each, required=False)


def _row(name: str, found: dict[str, Any] | None, *, required: bool) -> Row:
    """Return the row of a finding; without the packages that ltrain locks, most still works."""
    value = float(found is not None and found["state"] == "ok")
    note = found["detail"] if found else "not found"
    return Row(name, value, "1: as it should be", at_least=1.0 if required else None, note=note)
