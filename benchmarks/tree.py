"""The prefix tree beside a dense mask: memory and seconds of a large step, speed of small ones.

The large step is one tree: 64 rollouts of eight tasks, of four calls each. The prompt of a call
continues that of the one before, but for the last third of its response. The small ones are
micro-batches of six layers of SmolLM2-135M with random weights: samples of one prompt, and one row.
Packed rows, which share nothing, are computed by their own attention and by a dense mask, too.
Seconds are CPU seconds of one thread, and both sides take turns.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from ltrain_train.learner import CPU, attention_inputs, build_prefix_tree, packed_attention

TASKS, SAMPLES, CALLS = 8, 8, 4
COMMON, PROMPT, RESPONSE, OBSERVATION = 400, 300, 66, 21
"""Tokens of the system prompt, of a task, of a response and of a tool's result."""
VOCAB_SIZE = 49_152
HEADS, KEY_HEADS, DIMENSION, LAYERS = 9, 3, 64, 6
MIB = 1 << 20
hugging_face: Any = transformers  # its classes have no types
Rows = list[NDArray[np.uint32]]


def rollout_rows() -> Rows:
    """Return the rows of the large step, one for each call."""
    draw = np.random.default_rng(0)

    def tokens(count: int) -> NDArray[np.uint32]:
        return draw.integers(VOCAB_SIZE, size=count, dtype=np.uint32)

    rows: Rows = []
    common = tokens(COMMON)
    for _ in range(TASKS):
        task = np.concatenate([common, tokens(PROMPT)])
        for _ in range(SAMPLES):
            prompt = task
            for _ in range(CALLS):
                response = tokens(RESPONSE)
                rows.append(np.concatenate([prompt, response]))
                prompt = np.concatenate([prompt, response[: -RESPONSE // 3], tokens(OBSERVATION)])
    return rows


def sampled_rows(prompt: int, samples: int, response: int) -> Rows:
    """Return rows of one prompt."""
    draw = np.random.default_rng(0)
    first = draw.integers(VOCAB_SIZE, size=prompt, dtype=np.uint32)
    responses = draw.integers(VOCAB_SIZE, size=(samples, response), dtype=np.uint32)
    return [np.concatenate([first, each]) for each in responses]


def build_token_by_token(rows: Rows) -> tuple[list[int], list[list[int]]]:
    """Return the tokens of the nodes, and the nodes of each row."""
    nodes: dict[tuple[int, int], int] = {}
    tokens: list[int] = []
    paths = []
    for row in rows:
        node, path = -1, []
        for token in row.tolist():
            node = nodes.setdefault((node, token), len(nodes))
            if node == len(tokens):
                tokens.append(token)
            path.append(node)
        paths.append(path)
    return tokens, paths


def dense_mask(count: int, paths: list[Any]) -> torch.Tensor:
    """Return which node sees which: [node, node]."""
    sees = torch.zeros(count, count, dtype=torch.bool)
    for path in paths:
        nodes = torch.as_tensor(path)
        sees[nodes[:, None], nodes] = torch.ones(len(path), len(path), dtype=torch.bool).tril()
    return sees


def tensors_of(tree: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ends and the depths of a tree."""
    return torch.from_numpy(tree.ends), torch.from_numpy(tree.depths)


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = run()
    return time.process_time() - began, result


def build_both(rows: Rows) -> dict[str, Any]:
    """Build the large tree both ways, three times each, and return the least seconds."""

    def by_intervals() -> Any:
        tree = build_prefix_tree(rows, [1.0] * len(rows))
        return attention_inputs(*tensors_of(tree))["query_blocks"]

    def token_by_token() -> torch.Tensor:
        tokens, paths = build_token_by_token(rows)
        return dense_mask(len(tokens), paths)

    runs = [(timed(token_by_token), timed(by_intervals)) for _ in range(3)]
    (_, mask), (_, blocks) = runs[0]
    kept = sum(block.keys.nbytes + block.ends.nbytes for block in blocks)
    largest = max(block.mask(torch.float32).nbytes for block in blocks)
    return {
        "row_tokens": sum(map(len, rows)),
        "tree_tokens": len(mask),
        "dense_build_s": round(min(dense for (dense, _), _ in runs), 2),
        "build_s": round(min(ours for _, (ours, _) in runs), 3),
        "dense_mask_mib": round(mask.nbytes / MIB, 1),
        "mask_mib": round((kept + largest) / MIB, 1),
    }


def measure_layer(rows: Rows, *, dense: bool) -> dict[str, float]:
    """Run the attention of a key head over the large tree, forward and backward."""
    tree = build_prefix_tree(rows, [1.0] * len(rows))
    count, group = len(tree.tokens), HEADS // KEY_HEADS
    query, key, value = (
        torch.randn(1, heads, count, DIMENSION, requires_grad=True) for heads in (group, 1, 1)
    )
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _peak_mib()
    began = time.process_time()
    if dense:
        out = torch.nn.functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(group, 1),
            value.repeat_interleave(group, 1),
            attn_mask=dense_mask(count, tree.paths),
        )
    else:
        inputs = attention_inputs(*tensors_of(tree))
        attend = hugging_face.AttentionInterface()[CPU.tree_attention]
        out, _ = attend(torch.nn.Module(), query, key, value, None, **inputs)
    torch.autograd.backward(out.sum())
    return {
        "s": round(time.process_time() - began, 2),
        "peak_mib": round(_peak_mib() - before),
    }


def _peak_mib() -> float:
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) / 1024


@dataclass(frozen=True)
class MicroBatch:
    """One tree, and a model that computes it."""

    tree: Any
    model: Any
    dtype: torch.dtype

    def seconds(self, *, dense: bool) -> float:
        """Return the seconds of forward and backward, the making of the mask included."""
        self.model.set_attn_implementation("sdpa" if dense else CPU.tree_attention)
        began = time.process_time()
        if dense:
            mask = dense_mask(len(self.tree.tokens), self.tree.paths)[None, None]
            inputs: dict[str, Any] = {"attention_mask": mask}
        else:
            inputs = attention_inputs(*tensors_of(self.tree))
        out = self.model(
            input_ids=torch.from_numpy(self.tree.tokens)[None],
            position_ids=torch.from_numpy(self.tree.depths)[None],
            use_cache=False,
            **inputs,
        )
        out.last_hidden_state.sum().backward()
        self.model.zero_grad()
        return time.process_time() - began


@dataclass(frozen=True)
class PackedBatch:
    """Rows one after the other, and a model that computes them."""

    lengths: list[int]
    model: Any

    def seconds(self, *, dense: bool) -> float:
        """Return the seconds of forward and backward; transformers makes the dense mask."""
        self.model.set_attn_implementation("sdpa" if dense else packed_attention("fp32"))
        inputs = {} if dense else {"row_lengths": self.lengths}
        positions = torch.cat([torch.arange(length) for length in self.lengths])[None]
        began = time.process_time()
        out = self.model(input_ids=positions, position_ids=positions, use_cache=False, **inputs)
        out.last_hidden_state.sum().backward()
        self.model.zero_grad()
        return time.process_time() - began


def compare_micro_batches(dtype: torch.dtype, turns: int) -> dict[str, float]:
    """Return the tokens a second of each shape, at the least time of several turns."""
    config = hugging_face.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HEADS * DIMENSION,
        intermediate_size=1536,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
    )
    model = hugging_face.LlamaModel(config).to(dtype).train()
    result = {}
    shapes = {"samples": sampled_rows(120, 8, 81), "row": sampled_rows(120, 1, 648)}
    for name, rows in shapes.items():
        batch = MicroBatch(build_prefix_tree(rows, [1.0] * len(rows)), model, dtype)
        runs = [(batch.seconds(dense=True), batch.seconds(dense=False)) for _ in range(turns)]
        for side, label in enumerate(("dense_", "")):
            rate = len(batch.tree.tokens) / min(run[side] for run in runs)
            result[f"{name}_{label}tokens_per_s"] = round(rate, 1)
    for name, lengths in {"short": [192] * 4, "long": [1000] * 4}.items():
        packed = PackedBatch(lengths, model)
        runs = [(packed.seconds(dense=True), packed.seconds(dense=False)) for _ in range(turns)]
        for side, label in enumerate(("dense_", "")):
            rate = sum(lengths) / min(run[side] for run in runs)
            result[f"packed_{name}_{label}tokens_per_s"] = round(rate, 1)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--layer", choices=["dense", "tree"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = rollout_rows()
    if arguments.layer:
        print(json.dumps(measure_layer(rows, dense=arguments.layer == "dense")))
        return
    result = build_both(rows)
    for layer in ("dense", "tree"):
        # processes of their own, because the peak of this one is that of the dense mask
        command = [sys.executable, "-m", "benchmarks.tree", "--layer", layer]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for name, value in json.loads(done.stdout).items():
            result[f"{layer}_layer_{name}"] = value
    for dtype in (torch.float32, torch.bfloat16):
        rates = compare_micro_batches(dtype, arguments.turns)
        name = str(dtype).removeprefix("torch.")
        result |= {f"{name}_{key}": rate for key, rate in rates.items()}
    print(
        json.dumps(
            {
                "name": "tree",
                "value": result["mask_mib"],
                "unit": f"MiB of masks for a tree of {result['tree_tokens']} tokens",
                "peer": result["dense_mask_mib"],
                "ratio": round(result["mask_mib"] / result["dense_mask_mib"], 4),
                **result,
            }
        )
    )


if __name__ == "__main__":
    main()
