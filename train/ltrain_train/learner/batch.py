"""Converts rows to the jagged TensorDict of verl's engines; the only module that uses tensordict.

Every per-token tensor is as long as its row, prompt included. Position i is about token i; the
values over the prompt are zero.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import NonTensorData, TensorDict

from ltrain_train.learner.prefix_tree import pack_rows
from ltrain_train.learner.samples import Row

EMPTY_ROW = Row(
    prompt=[0], response=[0], mask=[0], logprobs=[0.0], advantages=[0.0], weights=[0.0],
    temperature=1.0, old=[0.0], correction=[0.0],
)  # fmt: skip
"""Pads micro-batches, which need equally many rows in verl; it has no trained token."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The rows of one optimizer step, in micro-batches."""

    data: Any
    row_numbers: list[int]
    """The number of the row at each position of the batch; -1 for padding."""
    rows: Sequence[Row]
    computed_tokens: int
    """Tokens that the model computes."""


def make_batch(rows: Sequence[Row], *, ranks: int, tokens: int, shared: bool) -> StepBatch:
    """Split rows into micro-batches of at most `tokens` tokens, equally many for each rank.

    A row that is longer than `tokens` is a micro-batch by itself.
    """
    ids = [row.prompt + row.response for row in rows]
    temperatures = [row.temperature for row in rows]
    packs = pack_rows([row[:-1] for row in ids], temperatures, max_tokens=tokens, shared=shared)
    packs.rows.extend([] for _ in range(-len(packs.rows) % ranks))
    size = max(map(len, packs.rows))
    row_numbers = [i for part in packs.rows for i in part + [-1] * (size - len(part))]
    batch_rows = [EMPTY_ROW if i < 0 else rows[i] for i in row_numbers]
    fields = _fields(batch_rows, corrected=any(row.correction for row in rows))
    options = {
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": size,
        "weight_sum": sum(map(total_weight, rows)),
    }
    fields |= {name: NonTensorData(value) for name, value in options.items()}
    return StepBatch(
        TensorDict(fields, batch_size=[len(batch_rows)]), row_numbers, rows, packs.tokens
    )


def total_weight(row: Row) -> float:
    """Return the sum of the weights of a row's trained tokens."""
    return sum(w for w, m in zip(row.weights, row.mask, strict=True) if m)


def response_log_probs(output: Any, batch: StepBatch) -> list[torch.Tensor]:
    """Return the log-probabilities of each row's response tokens from `infer_batch`'s output."""
    positions = {i: position for position, i in enumerate(batch.row_numbers)}
    full = output["log_probs"].unbind()
    # position i predicts token i + 1
    return [full[positions[i]][len(row.prompt) - 1 : -1] for i, row in enumerate(batch.rows)]


def _fields(rows: Sequence[Row], *, corrected: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "input_ids": _jagged((row.prompt + row.response for row in rows), torch.int64),
        "position_ids": _jagged((range(len(row)) for row in rows), torch.int64),
        "scored": _response_jagged(rows, [[1] * len(row.response) for row in rows], torch.int64),
        "loss_mask": _response_jagged(rows, [row.mask for row in rows], torch.int64),
        "old_log_probs": _response_jagged(
            rows, [row.old or row.logprobs for row in rows], torch.float32
        ),
        "advantages": _response_jagged(
            rows, [_weighted_advantages(row) for row in rows], torch.float32
        ),
        "temperature": torch.tensor([row.temperature for row in rows]),
    }
    if corrected:
        ratios = [row.correction or [0.0] * len(row.response) for row in rows]
        fields["rollout_is_weights"] = _response_jagged(rows, ratios, torch.float32)
    return fields


def _weighted_advantages(row: Row) -> list[float]:
    return [a * w for a, w in zip(row.advantages, row.weights, strict=True)]


def _response_jagged(
    rows: Sequence[Row], values: Iterable[Sequence[float]], dtype: torch.dtype
) -> Any:
    pairs = zip(rows, values, strict=True)
    return _jagged(([0] * len(row.prompt) + list(response) for row, response in pairs), dtype)


def _jagged(rows: Iterable[Sequence[float]], dtype: torch.dtype) -> Any:
    lists = [list(row) for row in rows]
    flat = torch.tensor([x for row in lists for x in row], dtype=dtype)
    offsets = torch.tensor([0, *map(len, lists)]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(flat, offsets)
