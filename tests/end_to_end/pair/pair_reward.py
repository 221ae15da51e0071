"""Whether the word of each agent is on one side of a plane through the space of the model's head.

All words on a side can become likely together, as the adapter changes what the head reads.
"""

from functools import cache
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

MODEL = Path(__file__).parent / "tiny" / "model.safetensors"


def score(task: dict[str, Any], result: dict[str, int]) -> dict[str, float]:
    return {policy: float(word in one_side()) for policy, word in result.items()}


@cache
def one_side() -> frozenset[int]:
    """Return the words whose token, which has the word's number, is on the side."""
    head = load_file(MODEL)["lm_head.weight"]
    return frozenset(word for word in range(512) if head[word, 0] > 0)
