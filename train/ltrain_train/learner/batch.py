"""Rows as the jagged TensorDict that verl's engines take; the only module that knows tensordict.

Every per-token tensor is as long as its row, prompt included, and stands at the token it is about:
zero over the prompt.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import NonTensorData, TensorDict

from ltrain_train.learner.samples import Row
from ltrain_train.learner.tree import pack

EMPTY = Row(
    prompt=[0], response=[0], mask=[0], logprobs=[0.0], advantages=[0.0], weights=[0.0],
    temperature=1.0, old=[0.0], correction=[0.0],
)  # fmt: skip
"""Fills up micro-batches, which verl wants equally many rows in: it has no trained token."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One optimizer step's rows, in micro-batches."""

    data: Any
    order: list[int]
    """The number of the row at each place; -1 where there is none."""
    rows: Sequence[Row]
    computed: int
    """Tokens that go through the model."""


def make_batch(rows: Sequence[Row], *, ranks: int, tokens: int, shared: bool) -> Batch:
    """Deal rows to micro-batches of at most `tokens` tokens, each rank equally many.

    A row that is longer than `tokens` is a micro-batch by itself.
    """
    ids = [row.prompt + row.response for row in rows]
    kinds = [row.temperature for row in rows]
    packs = pack([row[:-1] for row in ids], kinds, most=tokens, shared=shared)
    packs.rows.extend([] for _ in range(-len(packs.rows) % ranks))
    size = max(map(len, packs.rows))
    order = [i for part in packs.rows for i in part + [-1] * (size - len(part))]
    placed = [EMPTY if i < 0 else rows[i] for i in order]
    fields = _fields(placed, corrected=any(row.correction for row in rows))
    told = {
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": size,
        "weight_sum": sum(map(total_weight, rows)),
    }
    fields |= {name: NonTensorData(value) for name, value in told.items()}
    return Batch(TensorDict(fields, batch_size=[len(placed)]), order, rows, packs.tokens)


def total_weight(row: Row) -> float:
    """Give the weight of a row's trained tokens together."""
    return sum(w for w, m in zip(row.weights, row.mask, strict=True) if m)


def response_log_probs(output: Any, batch: Batch) -> list[torch.Tensor]:
    """Give each row's log-probabilities of its response tokens from what `infer_batch` answered."""
    places = {i: place for place, i in enumerate(batch.order)}
    full = output["log_probs"].unbind()
    # position i predicts token i + 1
    return [full[places[i]][len(row.prompt) - 1 : -1] for i, row in enumerate(batch.rows)]


def _fields(rows: Sequence[Row], *, corrected: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "input_ids": _jagged((row.prompt + row.response for row in rows), torch.int64),
        "position_ids": _jagged((range(len(row)) for row in rows), torch.int64),
        "scored": _over(rows, [[1] * len(row.response) for row in rows], torch.int64),
        "loss_mask": _over(rows, [row.mask for row in rows], torch.int64),
        "old_log_probs": _over(rows, [row.old or row.logprobs for row in rows], torch.float32),
        "advantages": _over(rows, [_weighted(row) for row in rows], torch.float32),
        "temperature": torch.tensor([row.temperature for row in rows]),
    }
    if corrected:
        ratios = [row.correction or [0.0] * len(row.response) for row in rows]
        fields["rollout_is_weights"] = _over(rows, ratios, torch.float32)
    return fields


def _weighted(row: Row) -> list[float]:
    return [a * w for a, w in zip(row.advantages, row.weights, strict=True)]


def _over(rows: Sequence[Row], values: Iterable[Sequence[float]], dtype: torch.dtype) -> Any:
    pairs = zip(rows, values, strict=True)
    return _jagged(([0] * len(row.prompt) + list(given) for row, given in pairs), dtype)


def _jagged(rows: Iterable[Sequence[float]], dtype: torch.dtype) -> Any:
    lists = [list(row) for row in rows]
    flat = torch.tensor([x for row in lists for x in row], dtype=dtype)
    offsets = torch.tensor([0, *map(len, lists)]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(flat, offsets)
