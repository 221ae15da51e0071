"""The attention of a prefix tree, block by block and as flex attention, equals a dense mask's."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property_examples import examples
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from ltrain_train.learner.prefix_tree import (
    PACKED_MODELS,
    TREE_MODELS,
    PrefixTree,
    build_prefix_tree,
    supports_packing,
    supports_prefix_tree,
)
from ltrain_train.learner.verl_backend.device import CPU, CUDA
from ltrain_train.learner.verl_backend.rows_attention import ATTENTION, packed_attention
from ltrain_train.learner.verl_backend.tree_attention import (
    FLEX_BLOCK,
    FLEX_OPTIONS,
    attention_inputs,
    cpu_attention,
    flex_mask,
    flex_masks,
    split_queries,
)

hugging_face: Any = transformers  # its classes have no types
MODULE = torch.nn.Module()
ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8)


def grow(rows: list[list[int]], temperatures: list[float] | None = None) -> PrefixTree:
    arrays = [np.array(row, np.uint32) for row in rows]
    return build_prefix_tree(arrays, temperatures or [1.0] * len(rows))


def dense_mask(tree: PrefixTree, window: int | None = None) -> torch.Tensor:
    """Return which node sees which, from the rows."""
    sees = torch.zeros(len(tree.tokens), len(tree.tokens), dtype=torch.bool)
    for path in tree.paths:
        for depth, node in enumerate(path):
            first = 0 if window is None else max(0, depth + 1 - window)
            sees[node, path[first : depth + 1]] = True
    return sees


def draw_inputs(nodes: int, key_heads: int, group: int) -> list[torch.Tensor]:
    """Return random query, key and value."""
    heads = (key_heads * group, key_heads, key_heads)
    return [torch.randn(1, count, nodes, 8, requires_grad=True) for count in heads]


def tensors_of(tree: PrefixTree) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ends and the depths of a tree."""
    return torch.from_numpy(tree.ends), torch.from_numpy(tree.depths)


def compute_blocks(
    tree: PrefixTree, inputs: list[torch.Tensor], size: int, window: int | None = None
) -> torch.Tensor:
    blocks = split_queries(*tensors_of(tree), size)
    query, key, value = inputs
    options: dict[str, Any] = {"scaling": 0.3, "sliding_window": window}
    out, _ = cpu_attention(MODULE, query, key, value, None, query_blocks=blocks, **options)
    return out.transpose(1, 2)


def compute_dense(
    tree: PrefixTree, inputs: list[torch.Tensor], scale: float, window: int | None = None
) -> torch.Tensor:
    query, *others = inputs
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in others)
    mask = dense_mask(tree, window)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


@settings(max_examples=examples(50))
@given(
    ROWS,
    st.integers(1, 7),
    st.integers(1, 2),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(1, 10)),
    st.integers(0, 99),
)
def test_blocks_equal_a_dense_mask(
    rows: list[list[int]], size: int, key_heads: int, group: int, window: int | None, seed: int
) -> None:
    torch.manual_seed(seed)
    tree = grow(rows, [0.7 if sum(row) % 3 == 0 else 1.0 for row in rows])
    inputs = draw_inputs(len(tree.tokens), key_heads, group)
    expected = compute_dense(tree, inputs, 0.3, window)
    gradient = torch.randn_like(expected)
    of_expected = torch.autograd.grad(expected, inputs, gradient)
    out = compute_blocks(tree, inputs, size, window)
    torch.testing.assert_close(out, expected)
    of_inputs = torch.autograd.grad(out, inputs, gradient)
    torch.testing.assert_close(of_inputs, of_expected, atol=1e-5, rtol=1e-4)


def test_a_block_sees_its_ancestors_and_itself() -> None:
    tree = grow([[1, 2, 3, 4], [1, 2, 5, 6], [7, 8]])
    first, second, third = split_queries(*tensors_of(tree), 3)
    assert [block.keys.tolist() for block in (first, second, third)] == [
        [0, 1, 2],
        [0, 1, 2, 3, 4, 5],
        [6, 7],
    ]
    assert second.mask(torch.float32).isfinite().int().tolist() == [
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 1],
    ]


def test_the_keys_of_blocks_grow_with_the_depth_and_not_with_the_rows() -> None:
    draw = np.random.default_rng(0)
    prompt = draw.integers(9, size=300)
    rows = [[*prompt, *draw.integers(9, size=100)] for _ in range(64)]
    tree = grow([[int(token) for token in row] for row in rows])
    assert len(tree.tokens) > 6000
    blocks = split_queries(*tensors_of(tree), 256)
    assert max(len(block.keys) for block in blocks) <= 400 + 256


def test_bfloat16_sums_the_gradients_of_keys_in_float32() -> None:
    torch.manual_seed(0)
    tree = grow([[1] * 40 + [2 + row] * 4 for row in range(64)])
    exact = draw_inputs(len(tree.tokens), 1, 2)
    inputs = [x.detach().bfloat16().requires_grad_() for x in exact]
    expected = compute_dense(tree, [x.float() for x in inputs], 0.3)
    gradient = torch.randn_like(expected)
    of_expected = torch.autograd.grad(expected, inputs, gradient)
    out = compute_blocks(tree, inputs, 4)
    assert out.dtype == torch.bfloat16
    of_inputs = torch.autograd.grad(out, inputs, gradient.bfloat16())
    for found, other in zip(of_inputs, of_expected, strict=True):
        assert (found - other).float().norm() < 0.005 * other.float().norm()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 60, 190])
@pytest.mark.parametrize("heads", [(1, 1), (2, 3)])
def test_flex_attention_reads_the_same_intervals(
    heads: tuple[int, int], window: int | None
) -> None:
    torch.manual_seed(0)
    rows = [[1] * 150 + [2 + row] * 50 for row in range(5)] + [[1], [9, 9], [9], [9, 9]]
    tree = grow(rows).pad(FLEX_BLOCK)
    query, key, value = (x.detach() for x in draw_inputs(len(tree.tokens), *heads))
    mask: Any = flex_mask(*tensors_of(tree), window)
    options: Any = FLEX_OPTIONS
    flex: Any = flex_attention(
        query,
        key,
        value,
        block_mask=mask,
        enable_gqa=True,
        scale=0.3,
        kernel_options=options,
    )
    in_rows = np.unique(np.concatenate(tree.paths))
    expected = compute_dense(tree, [query, key, value], 0.3, window)
    torch.testing.assert_close(flex[:, :, in_rows], expected[:, :, in_rows])


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kinds", [["full_attention"], ["full_attention", "sliding_attention"]])
def test_trees_of_all_sizes_need_two_compilations(kinds: list[str]) -> None:
    """The first is for its own size, the second for all others."""
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled: Any = torch.compile(flex_attention, backend=counter)
    layers = {"layer_types": kinds, "num_hidden_layers": len(kinds), "use_sliding_window": True}
    config = hugging_face.Qwen3Config(**layers)
    for size in (700, 650, 710, 300, 64, 1000):
        tree = grow([[row] * size for row in range(2)]).pad(FLEX_BLOCK)
        query, key, value = (x.detach() for x in draw_inputs(len(tree.tokens), 1, 2))
        masks = flex_masks(*tensors_of(tree), config)
        for mask in masks.values() if isinstance(masks, dict) else [masks]:
            compiled(query, key, value, block_mask=mask, enable_gqa=True)
    assert counter.frame_count == 2


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=8),
    st.integers(0, 300),
    st.one_of(st.none(), st.integers(1, 500)),
)
def test_flex_attention_skips_blocks_that_no_query_sees(
    lengths: list[int], common: int, window: int | None
) -> None:
    rows = [[0] * min(common, length) + [n + 1] * length for n, length in enumerate(lengths)]
    tree = grow(rows).pad(FLEX_BLOCK)
    mask: Any = flex_mask(*tensors_of(tree), window)
    size = len(tree.tokens)
    expected: Any = create_block_mask(mask.mask_mod, None, None, size, size, device="cpu")
    if window is None:
        for name in ("kv_num_blocks", "full_kv_num_blocks"):
            assert getattr(mask, name).tolist() == getattr(expected, name).tolist()
        assert mask.to_dense().tolist() == expected.to_dense().tolist()
    else:  # depths of a block's ends may lie further apart than those of any pair in it
        assert (mask.to_dense() >= expected.to_dense()).all()


WINDOW = {"sliding_window": 4}
ALTERNATE = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("Llama", {}),  # and SmolLM 2
    "Gemma 3": ("Gemma3Text", {**ALTERNATE, "query_pre_attn_scalar": 8}),
    "Gemma": ("Gemma", {}),
    "Gemma 2": ("Gemma2", {**ALTERNATE, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 0.5}),
    "Granite": ("Granite", {}),
    "Mistral": ("Mistral", {"sliding_window": None}),
    "Mistral, windows": ("Mistral", WINDOW),
    "OLMo 2": ("Olmo2", {}),
    "Phi": ("Phi", {}),
    "Phi 3": ("Phi3", {"pad_token_id": 0, **WINDOW}),
    "Qwen 2": ("Qwen2", {}),  # and Qwen 2.5
    "Qwen 2, windows": ("Qwen2", {**ALTERNATE, "use_sliding_window": True}),
    "Qwen 3": ("Qwen3", {}),
    "SmolLM 3": ("SmolLM3", {"pad_token_id": 0}),
}
"""The class of a model, and what its configuration has beside the sizes."""
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
LATENT = {
    **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12, "topk_group": 1},
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "num_key_value_heads": 4},
}
PACKED: dict[str, tuple[str, dict[str, Any]]] = {
    "Cohere 2": ("Cohere2", {**ALTERNATE, "pad_token_id": 0}),
    "DeepSeek 3": ("DeepseekV3", {**EXPERTS, **LATENT, "n_routed_experts": 4, "n_group": 1}),
    "ERNIE 4.5 with experts": ("Ernie4_5_Moe", {**EXPERTS, "moe_num_experts": 4, "moe_k": 2}),
    "EXAONE 4": ("Exaone4", ALTERNATE),
    "GLM 4": ("Glm4", {"pad_token_id": 0}),
    "GLM 4 with experts": (
        "Glm4Moe",
        {**EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 1},
    ),
    "Granite with experts": ("GraniteMoe", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Ministral": ("Ministral", ALTERNATE),
    "Mixtral": ("Mixtral", {"num_local_experts": 4}),
    "OLMo 3": ("Olmo3", ALTERNATE),
    "OLMoE": ("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "Qwen 2 with experts": (
        "Qwen2Moe",
        {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 16},
    ),
    "Qwen 3 with experts": ("Qwen3Moe", {**EXPERTS, "num_experts": 4}),
    "Seed OSS": ("SeedOss", {"attention_dropout": 0.0, "residual_dropout": 0.0}),
    "StarCoder 2": ("Starcoder2", WINDOW),
}
PER_CHANGE = ("Llama", "Gemma 2", "Gemma 3", "Qwen 3 with experts")
TESTED_ROWS = [[3], [3, 4, 5], [3, 4, 5, 6, 7], [3, 4, 8], [3, 4, 8], [9, 9], [3, *range(40)]]


def names_of(architectures: dict[str, tuple[str, dict[str, Any]]]) -> list[Any]:
    """Return the names as parameters of a test; those outside `PER_CHANGE` run at night."""
    return [
        name if name in PER_CHANGE else pytest.param(name, marks=pytest.mark.nightly)
        for name in architectures
    ]


def test_each_supported_architecture_is_computed() -> None:
    for architectures, models in ((ARCHITECTURES, TREE_MODELS), (PACKED, PACKED_MODELS)):
        configs = [getattr(hugging_face, f"{name}Config") for name, _ in architectures.values()]
        assert {config.model_type for config in configs} == set(models)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning:torch.jit")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", names_of(ARCHITECTURES))
def test_a_tree_of_rows_has_the_log_probabilities_and_gradients_of_each(name: str) -> None:
    config, model, weights = make_model(*ARCHITECTURES[name])
    assert supports_prefix_tree(config.to_dict())
    single, expected = compute_alone(model, weights)
    tree = grow(TESTED_ROWS)
    model.set_attn_implementation(CPU.tree_attention)
    shared = compute_rows(model, tree, attention_inputs(*tensors_of(tree), config))
    torch.testing.assert_close(shared, single)
    distance = (flat_gradient(model, shared, weights) - expected).norm()
    assert distance < 1e-5 * expected.norm()

    model.set_attn_implementation(CUDA.tree_attention)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        tree = tree.pad(FLEX_BLOCK)
        masks = flex_masks(*tensors_of(tree), config)
        flex = compute_rows(model, tree, {"attention_mask": masks})
    torch.testing.assert_close(flex, single)


@pytest.mark.parametrize("name", names_of(PACKED))
def test_packed_rows_have_the_log_probabilities_and_gradients_of_each(name: str) -> None:
    config, model, weights = make_model(*PACKED[name])
    assert supports_packing(config.to_dict()) and not supports_prefix_tree(config.to_dict())
    assert model._supports_flash_attn
    single, expected = compute_alone(model, weights)
    lengths = [len(row) for row in TESTED_ROWS]
    model.set_attn_implementation(packed_attention("bf16"))
    assert model.config._attn_implementation == ATTENTION
    output = model(
        input_ids=torch.tensor([[token for row in TESTED_ROWS for token in row]]),
        position_ids=torch.tensor([[at for length in lengths for at in range(length)]]),
        row_lengths=lengths,
    )
    packed = list(output.logits[0].log_softmax(-1).split(lengths))
    torch.testing.assert_close(packed, single)
    distance = (flat_gradient(model, packed, weights) - expected).norm()
    assert distance < 1e-5 * expected.norm()


def make_model(architecture: str, more: dict[str, Any]) -> tuple[Any, Any, torch.Tensor]:
    """Return the configuration of a small random model, the model, and a weight of each row."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    # with weights as small as usual, attention would be almost uniform
    scale = {"initializer_range": 0.2}
    config = getattr(hugging_face, f"{architecture}Config")(**sizes | heads | scale | more)
    model = hugging_face.AutoModelForCausalLM.from_config(config)
    return config, model, torch.randn(len(TESTED_ROWS))


def compute_alone(model: Any, weights: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the log-probabilities of each row by transformers, and their gradient."""
    model.set_attn_implementation("eager")
    single = [model(torch.tensor([row])).logits[0].log_softmax(-1) for row in TESTED_ROWS]
    return single, flat_gradient(model, single, weights)


def compute_rows(model: Any, tree: PrefixTree, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the log-probabilities of each row: [token, vocabulary]."""
    output = model(
        input_ids=torch.from_numpy(tree.tokens)[None],
        position_ids=torch.from_numpy(tree.depths)[None],
        **inputs,
    )
    log_probs = output.logits[0].log_softmax(-1)
    return [log_probs[torch.from_numpy(path)] for path in tree.paths]


def flat_gradient(model: Any, log_probs: list[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a weighted sum of the log-probabilities of tokens 0 to 9."""
    terms = [w * x[:, :10].sum() for w, x in zip(weights, log_probs, strict=True)]
    trained = [each for each in model.parameters() if each.requires_grad]
    gradients = torch.autograd.grad(torch.stack(terms).sum(), trained)
    return torch.cat([gradient.flatten() for gradient in gradients])
