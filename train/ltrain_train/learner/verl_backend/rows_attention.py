"""The attention of packed rows: a token attends to the tokens of its own row.

Ranks that compute rows together have a part of the tokens each. For the attention they exchange
them, so that each rank has all tokens of a part of the heads (DeepSpeed-Ulysses, arXiv:2309.14509).
"""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available
from verl.utils.ulysses import gather_heads_scatter_seq, gather_seq_scatter_heads

ATTENTION = "ltrain_rows"
"""transformers' name of `rows_attention`."""


def packed_attention(dtype: str) -> str:
    """Return transformers' name of the attention that computes packed rows in `dtype`.

    It is FlashAttention 3 or 2 if this is installed and there is a GPU; neither has fp32.
    """
    if dtype != "fp32" and is_flash_attn_3_available():
        return "flash_attention_3"
    if dtype != "fp32" and is_flash_attn_2_available():
        return "flash_attention_2"
    return ATTENTION


def rows_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    row_lengths: list[int],
    scaling: float | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention of packed rows, with transformers' interface of an attention function.

    Each row is a call of torch's causal attention, so no mask of all pairs of tokens exists.

    Args:
        query: [1, head, token, dimension].
        key: [1, key head, token, dimension]; several heads may share a key head.
        value: as `key`.
        row_lengths: the tokens of each row, in the order of the pack, those of all ranks included.
        scaling: the factor of the scores; None: 1 / sqrt(dimension).
        sliding_window: the window of the layer; None: it has none.
        dropout: the share of dropped weights.

    Returns:
        the output [1, token, head, dimension], and no attention weights.
    """
    # with a mask or in fp32, torch's fast kernels do not accept shared key heads
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    tensors = [gather_seq_scatter_heads(x, seq_dim=2, head_dim=1) for x in (query, key, value)]
    rows = zip(*(torch.split(x, row_lengths, 2) for x in tensors), strict=True)
    outputs = []
    for q, k, v in rows:
        mask = _window_mask(q, sliding_window)
        options: dict[str, Any] = {"attn_mask": mask, "is_causal": mask is None}
        options |= {"dropout_p": dropout, "scale": scaling}
        outputs.append(scaled_dot_product_attention(q, k, v, **options))
    output = gather_heads_scatter_seq(torch.cat(outputs, 2), head_dim=1, seq_dim=2)
    return output.transpose(1, 2).contiguous(), None


def _window_mask(query: torch.Tensor, window: int | None) -> torch.Tensor | None:
    """Return which token of a row sees which, [token, token]; None if each sees all before it."""
    length = query.shape[2]
    if window is None or length <= window:
        return None
    sees = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    return sees.triu(1 - window)


AttentionInterface.register(ATTENTION, rows_attention)
