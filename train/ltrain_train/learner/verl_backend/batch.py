"""Converts rows to the jagged TensorDict of verl's engines; the only module that uses tensordict.

Every per-token tensor is as long as its row, prompt included. Position i is about token i; the
values over the prompt are zero. The values go from Arrow buffers to NumPy to torch by offsets.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import DTypeLike, NDArray
from tensordict import NonTensorData, TensorDict
from torch.nn.utils.rnn import pad_sequence

from ltrain_train.learner import row_values
from ltrain_train.learner.masks import call_constraints, replay
from ltrain_train.learner.row_values import CORRECTION, OLD, REFERENCE
from ltrain_train.learner.samples import flat_token_ids, flat_values, later_calls, pack_step
from ltrain_transforms.tables import SAMPLES

OLD_VALUES = "old_values"
"""A further column: the critic's values before the update."""
RETURNS = "returns"
"""A further column: the targets of the critic's values."""
FURTHER = (CORRECTION, REFERENCE, OLD_VALUES, RETURNS)

WEIGHTS = SAMPLES.schema["loss_weight"]
EMPTY_ROW = pl.DataFrame(
    {
        "prompt_ids": [[0]], "response_ids": [[0]], "response_mask": [[0]], "temperature": [1.0],
        "rollout_logprobs": [[0.0]], "advantages": [[0.0]], "loss_weight": [[0.0]],
        "call_offsets": [[0]], "call_constraints": [[None]],
        **{name: [[0.0]] for name in (OLD, *FURTHER)},
    },
    schema_overrides={**SAMPLES.schema, **dict.fromkeys((OLD, *FURTHER), WEIGHTS)},
)  # fmt: skip
"""Pads micro-batches, which need equally many rows in verl; it has no trained token."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The rows of one optimizer step, in micro-batches."""

    data: Any
    row_numbers: list[int]
    """The number of the row at each position of the batch; -1 for padding."""
    prompt_lengths: list[int]
    """Of each row."""
    computed_tokens: int
    """Tokens that the model computes."""


def make_batch(rows: pl.DataFrame, *, ranks: int, tokens: int, shared: bool) -> StepBatch:
    """Split rows into micro-batches of at most `tokens` tokens, equally many for each rank.

    A row that is longer than `tokens` is a micro-batch by itself.
    """
    packs = pack_step(rows, ranks=ranks, tokens=tokens, shared=shared)
    size = max(map(len, packs.rows))
    row_numbers = [i for part in packs.rows for i in part + [-1] * (size - len(part))]
    columns = [name for name in EMPTY_ROW.columns if name in rows.columns]
    padded = pl.concat([rows.select(columns), EMPTY_ROW.select(columns)])
    fields = _fields(padded[[i if i >= 0 else rows.height for i in row_numbers]])
    options: dict[str, Any] = {
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": size,
        "weight_sum": row_values.total_weight(rows),
    }
    fields |= {name: NonTensorData(value) for name, value in options.items()}
    prompt_lengths = rows["prompt_ids"].list.len().to_list()
    return StepBatch(
        TensorDict(fields, batch_size=[len(row_numbers)]), row_numbers, prompt_lengths, packs.tokens
    )


def pad_calls(values: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Return a flat tensor over the tokens of calls as [call, token], with zeros at the ends."""
    return pad_sequence(list(torch.split(values, lengths)), batch_first=True)


def response_values(output: Any, name: str, batch: StepBatch) -> list[torch.Tensor]:
    """Return a value of each row's response tokens, such as `log_probs`, from the engine's output.

    The values are those of `infer_batch`.
    """
    positions = {i: position for position, i in enumerate(batch.row_numbers)}
    full = output[name].unbind()
    # position i predicts token i + 1
    return [full[positions[i]][length - 1 : -1] for i, length in enumerate(batch.prompt_lengths)]


def leave_out_refused(rows: pl.DataFrame, model: Path) -> tuple[pl.DataFrame, int]:
    """Leave calls with an id outside its mask out of the loss, and return their number.

    The grammar of the server was another one, so the probabilities of its ids are unknown.
    """
    layout = _Layout.of(rows)
    starts = layout.call_starts(rows)
    of_token, constraints = call_constraints(rows, layout.in_response, starts)
    if not constraints:
        return rows, 0
    found = replay(model, flat_token_ids(rows), of_token, starts, constraints).refused
    call = starts.cumsum()
    is_refused = np.isin(call, call[found])[layout.in_response]
    mask = np.where(is_refused, 0, flat_values(rows, "response_mask")).astype(np.uint8)
    return row_values.with_values(rows, response_mask=mask), len(found)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the T tokens of N rows are in a flat array: a row's response follows its prompt."""

    offsets: NDArray[np.int64]
    """Of each row, and the end: [N + 1]."""
    in_response: NDArray[np.bool_]
    """Whether a token is in a response: [T]."""

    @classmethod
    def of(cls, rows: pl.DataFrame) -> Self:
        lists = rows.select(pl.col("prompt_ids", "response_ids").list.len().cast(pl.Int64))
        lengths = lists.to_numpy().ravel()
        ends = lengths.cumsum()
        in_response = np.repeat(np.tile([False, True], rows.height), lengths)
        return cls(np.concatenate([[0], ends[1::2]]), in_response)

    def call_starts(self, rows: pl.DataFrame) -> NDArray[np.int64]:
        """Return 1 for each token at which a call begins, else 0: [T].

        The first call of a row begins with the row's prompt, each later one with the first token
        that it sampled.
        """
        starts = np.zeros(len(self.in_response), np.int64)
        starts[self.offsets[:-1]] = 1
        responses = self.offsets[:-1] + rows["prompt_ids"].list.len().to_numpy()
        starts[later_calls(rows, responses)] = 1
        return starts

    def over_prompts(self, values: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
        """Return the values of the response tokens with a zero for each prompt token."""
        full = np.zeros(len(self.in_response), dtype)
        full[self.in_response] = values
        return full

    def jagged(self, values: NDArray[Any]) -> Any:
        """Return the values of all tokens as a jagged tensor."""
        return torch.nested.nested_tensor_from_jagged(
            torch.from_numpy(values), torch.from_numpy(self.offsets)
        )


def _fields(rows: pl.DataFrame) -> dict[str, Any]:
    layout = _Layout.of(rows)
    starts = np.repeat(layout.offsets[:-1], np.diff(layout.offsets))
    weights = row_values.trained_weights(rows)
    old = flat_values(rows, OLD if OLD in rows.columns else "rollout_logprobs")
    per_token = {
        "input_ids": flat_token_ids(rows).astype(np.int64),
        "position_ids": np.arange(len(starts)) - starts,
        "scored": layout.in_response.astype(np.int64),
        "loss_mask": layout.over_prompts(flat_values(rows, "response_mask"), np.int64),
        "call_starts": layout.call_starts(rows),
        "old_log_probs": layout.over_prompts(old, np.float32),
        "advantages": layout.over_prompts(flat_values(rows, "advantages") * weights, np.float32),
        "weights": layout.over_prompts(weights, np.float32),
    }
    for column in FURTHER:
        if column in rows.columns:
            per_token[column] = layout.over_prompts(flat_values(rows, column), np.float32)
    of_token, constraints = call_constraints(rows, layout.in_response, per_token["call_starts"])
    if constraints:
        per_token["constraint"] = of_token
    fields = {name: layout.jagged(values) for name, values in per_token.items()}
    if constraints:
        fields["constraints"] = NonTensorData(constraints)
    return fields | {"temperature": torch.tensor(rows["temperature"].to_list())}
