"""Samples to the learner's TensorDict: CPU seconds and peak memory of rows of 2,000 tokens."""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

ROWS = 10_000
PROMPT, RESPONSE = 1_500, 500
"""Tokens of a row."""
SHARED = 1_000
"""Prompt tokens that the rows of a group have in common."""
GROUP = 8
VOCAB_SIZE = 49_152
MICRO_BATCH = 16_384
"""Tokens of a micro-batch."""


def write_samples(
    path: Path,
    rows: int,
    *,
    prompt: int = PROMPT,
    response: int = RESPONSE,
    vocab_size: int = VOCAB_SIZE,
) -> None:
    """Write a samples table: groups have a common prefix, half of each response is trained."""
    draw = np.random.default_rng(0)
    prompts = draw.integers(vocab_size, size=(rows, prompt), dtype=np.uint32)
    shared = min(SHARED, prompt)
    for first in range(0, rows, GROUP):
        prompts[first : first + GROUP, :shared] = prompts[first, :shared]
    mask = np.tile(np.arange(response) % 100 < 50, (rows, 1))
    advantages = draw.normal(size=(rows, 1)) * mask
    frame = pl.DataFrame(
        {
            "sample_id": [f"s{i}" for i in range(rows)],
            "policy": ["bench"] * rows,
            "tokens": ["sampled"] * rows,
            "prompt_ids": prompts,
            "response_ids": draw.integers(vocab_size, size=(rows, response), dtype=np.uint32),
            "response_mask": mask.astype(np.uint8),
            "rollout_logprobs": -draw.random((rows, response)) * mask,
            "advantages": advantages,
            "token_rewards": advantages,
            "loss_weight": mask / mask.sum(1, keepdims=True),
            "temperature": [1.0] * rows,
            "call_versions": [[0]] * rows,
            "call_offsets": [[0]] * rows,
        }
    )
    write_table(frame, path)


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Write a samples table; columns that the frame lacks are null."""
    from ltrain_transforms.tables import SAMPLES

    frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in SAMPLES.schema.items()
    ).write_parquet(path, compression="zstd")


def measure(path: Path) -> dict[str, float]:
    """Read the table into the TensorDict of one optimizer step, in this process."""
    from ltrain_train.learner import make_batch, read_rows, split_into_steps

    before, wall, cpu = _peak_bytes(), time.monotonic(), time.process_time()
    rows = read_rows(path, vocab_size=VOCAB_SIZE)
    [step] = split_into_steps(rows, 1, "0")
    made = make_batch(step, ranks=1, tokens=MICRO_BATCH, shared=True)
    return {
        "cpu_s": round(time.process_time() - cpu, 2),
        "s": round(time.monotonic() - wall, 2),
        "peak_gb": round((_peak_bytes() - before) / 1e9, 2),
        "tensordict_gb": round(made.data.bytes() / 1e9, 2),
        "computed_tokens": made.computed_tokens,
    }


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--samples", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.samples is not None:
        print(json.dumps(measure(arguments.samples)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.parquet"
        write_samples(path, arguments.rows)
        # a process of its own, because the peak of this one is that of writing
        command = [sys.executable, __file__, "--samples", str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout)
    print(
        json.dumps(
            {
                "name": "learner",
                "value": result["cpu_s"],
                "unit": f"CPU seconds of {arguments.rows} rows, from parquet to the TensorDict",
                "peer": None,
                "ratio": None,
                **result,
            }
        )
    )


if __name__ == "__main__":
    main()
