"""The stored spans of a benchmark's calls, and their log-probabilities computed again."""

import struct
import time
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import polars as pl
import torch

from ltrain_collector.store import Store


def read_spans(store_url: str, query: str, count: int) -> pl.DataFrame:
    """Return the spans of a query, once `count` are stored or a minute has passed."""
    until = time.monotonic() + 60
    with Store.open(store_url) as store:
        while (spans := store.query(query)).height < count and time.monotonic() < until:
            time.sleep(0.2)
    return spans


def largest_difference(model: Any, ids: Sequence[int], start: int, logprobs: str) -> float:
    """Return the largest difference between a call's log-probabilities and the model's.

    Args:
        ids: the prompt, the response, and perhaps later calls.
        start: the number of ids in the prompt.
        logprobs: `ltrain.response_logprobs` of the call's span.
    """
    packed = b64decode(logprobs)
    recorded = torch.tensor(struct.unpack(f"<{len(packed) // 4}f", packed))
    row = torch.tensor(ids)
    with torch.no_grad():
        computed = model(row[None]).logits[0].log_softmax(-1)[:-1].gather(1, row[1:, None])[:, 0]
    return float((computed[start - 1 : start - 1 + len(recorded)] - recorded).abs().max())
