"""The trial at the start: whether a server samples with an adapter about as fast as without.

Merged weights are sampled at full speed, but calls wait for each new version. On a GPU an adapter
costs little; vLLM on a CPU samples two to five times slower with one.
"""

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

from ltrain_train.gateway.serving.publish_choice import PublishChoice
from ltrain_train.gateway.serving.upstream import Upstream, UpstreamFailed
from ltrain_train.policy import (
    ADAPTER_CONFIG,
    ADAPTER_PARTS,
    ADAPTER_PREFIX,
    ADAPTER_WEIGHTS,
    read_shapes,
)

MIN_SPEED = 0.9
"""Speed with an adapter, relative to that without, from which adapters are published."""
CALLS, TOKENS, ROUNDS = 8, 16, 2
"""Calls at a time, tokens of each answer, and repetitions, of which the fastest counts."""
TRIAL_ADAPTER = "ltrain-trial"
NOT_ADAPTED = ("embed", "lm_head", "norm")
"""Parts of the names of matrices that get no adapter."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The seconds of the same calls without and with an adapter."""

    without: float
    with_adapter: float

    @property
    def speed(self) -> float:
        """The speed with an adapter, relative to that without."""
        return self.without / self.with_adapter

    @property
    def choice(self) -> PublishChoice:
        """The form of weights that is published after this trial."""
        rates = (CALLS * TOKENS / each for each in (self.with_adapter, self.without))
        with_adapter, without = (f"{rate:,.0f}" for rate in rates)
        reason = (
            f"with an adapter this server samples {with_adapter} tokens/s, without {without} "
            f"({self.speed:.2f} of the speed; adapters are published from {MIN_SPEED:g} on)"
        )
        return PublishChoice("adapter" if self.speed >= MIN_SPEED else "merged", reason)


async def measure_adapter(upstream: Upstream, weights: Path, rank: int) -> Trial:
    """Load an adapter that changes nothing into a server without other calls, and time calls with
    and without it.
    """
    async with _neutral_adapter(upstream, weights, rank):
        models = (upstream.model, TRIAL_ADAPTER)
        for model in models:  # the first calls take longer
            await _time_calls(upstream, model)
        rounds = [[await _time_calls(upstream, model) for model in models] for _ in range(ROUNDS)]
    without, with_adapter = map(min, zip(*rounds, strict=True))
    return Trial(without, with_adapter)


async def warm_up(upstream: Upstream, weights: Path, rank: int) -> None:
    """Make the first calls with an adapter, which take vLLM seconds, before agents do."""
    async with _neutral_adapter(upstream, weights, rank):
        await _time_calls(upstream, TRIAL_ADAPTER)


@asynccontextmanager
async def _neutral_adapter(upstream: Upstream, weights: Path, rank: int) -> AsyncIterator[None]:
    with TemporaryDirectory(prefix="ltrain-trial-") as folder:
        write_neutral_adapter(Path(folder), weights, rank)
        await upstream.load_adapter(TRIAL_ADAPTER, Path(folder))
        try:
            yield
        finally:
            await upstream.unload_adapter(TRIAL_ADAPTER)


async def _time_calls(upstream: Upstream, model: str) -> float:
    body = {"model": model, "prompt": "1", "max_tokens": TOKENS, "min_tokens": TOKENS}
    body |= {"ignore_eos": True, "temperature": 1.0}
    began = time.monotonic()
    answers = await asyncio.gather(*(upstream.complete_text(body) for _ in range(CALLS)))
    for status, answer in answers:
        if status != HTTPStatus.OK:
            sentence = answer[:200].decode(errors="replace")
            raise UpstreamFailed(f"The policy server answered the trial with {status}: {sentence}")
    return max(time.monotonic() - began, 1e-6)


def write_neutral_adapter(folder: Path, weights: Path, rank: int) -> None:
    """Write an adapter of zeros for each matrix of a model that a learner would adapt."""
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none"}
    shapes: dict[str, tuple[int, int]] = {}
    targets = set()
    for name, shape in read_shapes(weights).items():
        module = name.removesuffix(".weight")
        if len(shape) == 2 and module != name and not any(part in name for part in NOT_ADAPTED):
            down, up = (f"{ADAPTER_PREFIX}{module}.{part}" for part in ADAPTER_PARTS)
            shapes |= {down: (rank, shape[1]), up: (shape[0], rank)}
            targets.add(module.rsplit(".", 1)[-1])
    (folder / ADAPTER_CONFIG).write_text(json.dumps({**config, "target_modules": sorted(targets)}))
    _write_zeros(folder / ADAPTER_WEIGHTS, shapes)


def _write_zeros(file: Path, shapes: dict[str, tuple[int, int]]) -> None:
    """Write float32 zeros in the safetensors format, without torch."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with file.open("wb") as opened:
        opened.write(struct.pack("<Q", len(text)) + text)
        opened.truncate(8 + len(text) + end)
