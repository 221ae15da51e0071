"""The reward of a repair: whether the function is right for arguments that the agent never saw."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from ltrain import run_isolated

PYTHON = ("python", "-X", "pycache_prefix=/tmp", "-c")
"""Python that ignores what the attempt compiled: it may be older than the source."""
PROGRAM = """
import importlib, json, sys
module, function, cases = json.load(sys.stdin)
repaired = getattr(importlib.import_module(module), function)
print(json.dumps([repaired(*case) for case in cases]))
"""


def score(
    task: Mapping[str, Any], result: object, workspace: str | None, diff: str | None
) -> dict[str, float]:
    """Return `reward`, 1 for a right repair, and `edited`, which only informs."""
    return {
        "reward": float(workspace is not None and is_repaired(task, workspace)),
        "edited": float(bool(diff)),
    }


def is_repaired(task: Mapping[str, Any], folder: str) -> bool:
    """Return whether the module in the folder computes the expected values.

    The module is the agent's work, so it runs in a sandbox, and its values are compared outside.
    """
    cases = json.dumps([task["module"], task["function"], task["cases"]])
    try:
        done = run_isolated([*PYTHON, PROGRAM], folder, input=cases, timeout=10)
    except subprocess.TimeoutExpired:
        return False
    return done.stdout.splitlines()[-1:] == [json.dumps(task["expected"])]
