"""The attention of a prefix tree: node i attends to node j if and only if j <= i < `ends[j]`.

In a layer with a sliding window, j must also be less than the window above i: their depths tell.

On a CPU it is an attention implementation of transformers, `cpu_attention`, that computes blocks of
queries. The keys of a block are the ancestors of its first query and the block itself. Their mask
exists only while the block is computed, forward or backward, so memory does not grow with the
square of the nodes. On other devices it is transformers' flex attention.

Torch compiles flex attention for the shapes that occur. When it has compiled as often as its limit
allows, it computes the scores of all pairs of nodes, which takes too long and too much memory. So
trees are padded to whole blocks, and layers with and without windows share a kernel.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from ltrain_train.learner.verl_backend.device import CPU

BLOCK = 192
"""Queries of a block on a CPU."""
FLEX_BLOCK = 128
"""Queries, and keys, of a block of flex attention; a tree is padded to whole blocks."""
FLEX_OPTIONS = {"BACKEND": "TRITON", "FLOAT32_PRECISION": "'tf32x3'"}
"""Selects flex attention's kernel. Torch has another one for fewer than 128 queries, and cannot
compile it if the queries, times the heads that share a key head, are more than 128. In fp32 its
products are sums of three products in TF32, because those of one in fp32 use no tensor cores."""

aten: Any = torch.ops.aten


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """Neighbouring nodes, and the nodes that are visible to them."""

    start: int
    end: int
    """The node after the last one."""
    keys: torch.Tensor
    """The ancestors of the first node and the nodes of the block, in ascending order: [key]."""
    ends: torch.Tensor
    """`ends` of each key: [key]."""
    depths: torch.Tensor
    """Depth of each key: [key]; the last ones are the queries."""

    def mask(self, dtype: torch.dtype, window: int | None = None) -> torch.Tensor:
        """Return [query, key], the addend of the scores: -inf where the query sees no key, or 0."""
        queries = torch.arange(self.start, self.end)[:, None]
        hidden = (self.keys > queries) | (self.ends <= queries)
        if window is not None:
            own = self.depths[-len(queries) :, None]
            hidden |= own - self.depths >= window
        return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def split_queries(ends: torch.Tensor, depths: torch.Tensor, size: int = BLOCK) -> list[QueryBlock]:
    """Return the blocks of at most `size` queries of a tree."""
    return list(_split(ends, depths, size))


def _split(ends: torch.Tensor, depths: torch.Tensor, size: int) -> Iterator[QueryBlock]:
    for start in range(0, len(ends), size):
        end = min(start + size, len(ends))
        ancestors = (ends[:start] > start).nonzero()[:, 0]
        keys = torch.cat([ancestors, torch.arange(start, end)])
        yield QueryBlock(start, end, keys, ends[keys], depths[keys])


def attention_inputs(
    ends: torch.Tensor, depths: torch.Tensor, config: Any = None
) -> dict[str, Any]:
    """Return the inputs of a model that describe the attention of a tree.

    They are for the implementation of the device of `ends`.

    Args:
        ends: [node].
        depths: [node].
        config: the configuration of a model whose layers may have windows.
    """
    if ends.device.type == "cpu":
        return {"query_blocks": split_queries(ends, depths)}
    return {"attention_mask": flex_masks(ends, depths, config), "kernel_options": FLEX_OPTIONS}


def flex_masks(ends: torch.Tensor, depths: torch.Tensor, config: Any) -> Any:
    """Return the mask of all layers, or a mask for each kind of layer, as transformers takes it."""
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if kinds is None or "sliding_attention" not in kinds:
        return flex_mask(ends, depths, None if kinds else window)
    # a window that hides nothing: the mask of the other layers would need a kernel of its own
    windows = {"full_attention": len(ends), "sliding_attention": window}
    return {kind: flex_mask(ends, depths, windows[kind]) for kind in sorted(set(kinds))}


def flex_mask(ends: torch.Tensor, depths: torch.Tensor, window: int | None = None) -> BlockMask:
    """Return the mask of a tree for flex attention, without a comparison of each pair of nodes.

    The queries from a to before b see a key before a if its end is after a, and all of them see it
    if its end is not before b. So the highest and the lowest end of a block of keys decide; with a
    window, the highest and the lowest depth too.
    """

    # torch compiles a kernel for each number, but one for all tensors
    reach = None if window is None else torch.full((), window, device=ends.device)

    def sees(_batch: Any, _head: Any, query: Any, key: Any) -> torch.Tensor:
        visible: torch.Tensor = (key <= query) & (query < ends[key])
        if reach is not None:
            visible = visible & (depths[query] - depths[key] < reach)
        return visible

    count = len(ends)
    starts = torch.arange(0, count, FLEX_BLOCK, device=ends.device)
    blocks = ends.view(-1, FLEX_BLOCK)
    earlier = starts < starts[:, None]
    full = earlier & (blocks.amin(1) >= starts[:, None] + FLEX_BLOCK)
    partial = earlier & (blocks.amax(1) > starts[:, None]) & ~full
    if window is not None:
        high = depths.view(-1, FLEX_BLOCK)
        least, most = high.amin(1), high.amax(1)
        all_in = most[:, None] - least < window
        partial = (partial | full & ~all_in) & (least[:, None] - most < window)
        full = full & all_in
    partial.fill_diagonal_(True)
    return BlockMask.from_kv_blocks(
        *_list_blocks(partial),
        *_list_blocks(full),
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=sees,
        seq_lengths=(count, count),
    )


def _list_blocks(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of chosen key blocks of each query block, and their indices, first."""
    counts = chosen.sum(1, dtype=torch.int32)
    indices = chosen.int().argsort(dim=1, descending=True, stable=True).int()
    return counts[None, None], indices[None, None]


def cpu_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    query_blocks: list[QueryBlock],
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention of a tree, with transformers' interface of an attention function.

    Args:
        query: [1, head, node, dimension].
        key: [1, key head, node, dimension]; several heads may share a key head.
        value: as `key`.
        query_blocks: the blocks of the tree.
        scaling: the factor of the scores; None: 1 / sqrt(dimension).
        sliding_window: the window of the layer; None: it has none.
        softcap: the bound of the scores; None: they have none.

    Returns:
        the output [1, node, head, dimension], and no attention weights.
    """
    if softcap is not None:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        inputs = (query.float(), key.float(), value.float())
        parts = [
            checkpoint(
                _attend_capped, *inputs, x, scale, softcap, sliding_window, use_reentrant=False
            )
            for x in query_blocks
        ]
        return torch.cat(parts, 2).transpose(1, 2).to(query.dtype), None
    apply: Any = _TreeAttention.apply
    return apply(query, key, value, query_blocks, scaling, sliding_window), None


def _attend_capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block: QueryBlock,
    scale: float,
    cap: float,
    window: int | None,
) -> torch.Tensor:
    """Return the output [1, head, query, dimension] of a block, whose scores are capped by tanh."""
    groups = torch.unflatten(query[:, :, block.start : block.end], 1, (key.shape[1], -1))
    keys, values = (x[:, :, None, block.keys] for x in (key, value))
    scores = cap * torch.tanh(groups @ keys.mT * (scale / cap))
    weights = (scores + block.mask(torch.float32, window)).softmax(-1)
    return (weights @ values).flatten(1, 2)


class _TreeAttention(torch.autograd.Function):
    """Calls torch's flash attention for CPUs on each block; its operators make the masks anew."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        blocks: list[QueryBlock],
        scale: float | None,
        window: int | None,
    ) -> torch.Tensor:
        out = query.new_empty(query.transpose(1, 2).shape).transpose(1, 2)
        log_sums = query.new_empty(query.shape[:3], dtype=torch.float32)
        for block in blocks:
            rows = slice(block.start, block.end)
            out[:, :, rows], log_sums[:, :, rows] = (
                aten._scaled_dot_product_flash_attention_for_cpu(
                    query[:, :, rows],
                    key[:, :, block.keys],
                    value[:, :, block.keys],
                    attn_mask=block.mask(query.dtype, window),
                    scale=scale,
                )
            )
        ctx.save_for_backward(query, key, value, out, log_sums)
        ctx.blocks, ctx.scale, ctx.window = blocks, scale, window
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        query, key, value, out, log_sums = ctx.saved_tensors
        grad_out = gradients[0].transpose(1, 2)
        grad_query = torch.empty_like(query)
        # the gradient of a key has a term from each block, and the sum needs float32's precision
        grad_key, grad_value = (torch.zeros_like(x, dtype=torch.float32) for x in (key, value))
        for block in ctx.blocks:
            rows = slice(block.start, block.end)
            grad_query[:, :, rows], of_keys, of_values = (
                aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    grad_out[:, :, rows],
                    query[:, :, rows],
                    key[:, :, block.keys],
                    value[:, :, block.keys],
                    out[:, :, rows],
                    log_sums[:, :, rows],
                    0.0,
                    False,
                    attn_mask=block.mask(query.dtype, ctx.window),
                    scale=ctx.scale,
                )
            )
            grad_key.index_add_(2, block.keys, of_keys.float())
            grad_value.index_add_(2, block.keys, of_values.float())
        of_keys, of_values = grad_key.to(key.dtype), grad_value.to(value.dtype)
        return grad_query, of_keys, of_values, None, None, None


AttentionInterface.register(CPU.tree_attention, cpu_attention)
