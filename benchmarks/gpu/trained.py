"""Yields the tokens a second, FLOP/s, memory and exactness of updates: `make bench-step`."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.stage import Check, Row
from benchmarks.step import measure

from ltrain_train.gpu import list_gpus
from ltrain_train.policy import activation_size, training_size

MICRO_BATCH = 16_384
LORA_RANK = 16
"""The rank of the largest shape, whose weights and optimizer take most of a GPU."""
PEAK_TFLOPS = {"A100": 312, "H100": 989, "H200": 989, "H20": 148, "B200": 2250, "L40S": 362}
"""Dense TFLOP/s in bfloat16, by a part of the name that nvidia-smi prints; NVIDIA's data sheets."""
BARS = {"qwen2.5-1.5b": 35.0}
"""Least share of the peak in %, by shape."""


def rows(check: Check, shape: str) -> Iterator[Row]:
    """Yield the figures of updates over 64 rows of 2,000 tokens, of which eight share 1,000."""
    lora = LORA_RANK if shape == "llama-3.2-3b" else 0
    arguments = Namespace(
        shape="tiny" if check.quick else shape,
        rows=8 if check.quick else 64,
        lora_rank=lora,
        tokens_per_micro_batch=MICRO_BATCH,
        updates=1 if check.quick else 3,
        computed="tree",
        log=None,
    )
    made = measure(arguments, check.folder)
    yield Row("ready", made["ready_s"], "s")
    yield Row("first update", made["first_update_s"], "s")
    yield Row("update", made["update_s"], "s")
    yield Row("trained", made["tokens_per_s"], "tokens/s")
    yield Row("computed", made["tflop_per_s"], "TFLOP/s")
    if peak := peak_tflops():
        share, bar = 100 * made["tflop_per_s"] / peak, BARS.get(shape)
        yield Row("share of the peak", share, "%", at_least=bar and check.bar(bar))
    mean, largest = made["difference"], made["largest_difference"]
    yield Row("log-probabilities to transformers in fp32, mean", mean, "nats", at_most=0.02)
    yield Row("log-probabilities to transformers in fp32, largest", largest, "nats")
    if made["gpu_peak_gib"]:
        plan = planned_gib(check.folder / "model", lora)
        yield Row("memory", made["gpu_peak_gib"], "GiB")
        # 1 GiB of CUDA's own; see docs/gpus.md
        yield Row("memory by the plan", (made["gpu_peak_gib"] - 1) / plan, "", at_most=1.05)


def planned_gib(model: Path, lora_rank: int) -> float:
    """Return the memory that a run plans for a learner: the model and a micro-batch."""
    tokens = MICRO_BATCH * activation_size(model)
    return (training_size(model, lora_rank) + tokens) / (1 << 30)


def peak_tflops() -> float | None:
    """Return the peak of this machine's first GPU; None if it is not known."""
    name = next((gpu.name for gpu in list_gpus()), "")
    known = sorted(PEAK_TFLOPS, key=len, reverse=True)  # H200 is not H20
    return next((PEAK_TFLOPS[each] for each in known if each in name), None)
