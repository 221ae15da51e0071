"""Masks of structured output: CPU seconds of an update with them, divided by those without.

The rows are answers of SmolLM2-135M's tokenizer to one JSON schema, eight for each prompt. An
update computes the log-probabilities of the old policy and makes one optimizer step. The two kinds
of rows take turns in one learner.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
from transformers import AutoTokenizer

from ltrain_train.learner import LearnerClient, Objective, replay
from ltrain_train.policy import Constraint
from ltrain_transforms.recipe import Train
from ltrain_transforms.tables import SAMPLES

MODEL = Path(".ltrain/models/smollm2")
PROMPT = 200
"""Tokens of a prompt."""
GROUP = 8
NAMES = ("north", "south", "a valley in the hills", "the coast", "an island far away")
SCHEMA = {
    "type": "object",
    "properties": {
        "place": {"type": "string"},
        "sunny": {"type": "boolean"},
        "temperatures": {"type": "array", "items": {"type": "integer"}},
        "notes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["place", "sunny", "temperatures", "notes"],
    "additionalProperties": False,
}
CONSTRAINT = Constraint(kind="json", spec=json.dumps(SCHEMA)).model_dump_json()


def make_rows(rows: int) -> list[dict[str, Any]]:
    """Return unconstrained rows whose answers the schema allows."""
    tokenizer, draw = AutoTokenizer.from_pretrained(MODEL), random.Random(0)
    prompts = [[draw.randrange(1000, 40_000) for _ in range(PROMPT)] for _ in range(rows)]
    return [_row(tokenizer, draw, prompts[number // GROUP], number) for number in range(rows)]


def _row(tokenizer: Any, draw: random.Random, prompt: list[int], number: int) -> dict[str, Any]:
    answer = {
        "place": draw.choice(NAMES),
        "sunny": draw.random() < 0.5,
        "temperatures": [draw.randrange(40) for _ in range(10)],
        "notes": [draw.choice(NAMES) for _ in range(10)],
    }
    text = json.dumps(answer) + tokenizer.eos_token
    ids = tokenizer.encode(text, add_special_tokens=False)
    ones = [1.0] * len(ids)
    return {
        "sample_id": f"s{number}",
        "rollout_id": f"s{number}",
        "group_id": f"g{number // GROUP}",
        "tokens": "sampled",
        "prompt_ids": prompt,
        "response_ids": ids,
        "response_mask": [1] * len(ids),
        "rollout_logprobs": [-1.0] * len(ids),
        "advantages": [draw.uniform(-1, 1)] * len(ids),
        "token_rewards": ones,
        "loss_weight": ones,
        "temperature": 1.0,
        "call_offsets": [0],
        "call_versions": [0],
        "call_positions": [0],
    }


def used_seconds() -> float:
    """Return the CPU seconds of the processes below this one."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


def measure(turns: int, rows: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each update, with and without masks."""
    made = make_rows(rows)
    kinds = {"free": None, "masked": [CONSTRAINT]}
    train = Train(lora_rank=16, drift_limit=1e9)
    used: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, constraints in kinds.items():
            frame = [row | {"call_constraints": constraints} for row in made]
            pl.DataFrame(frame, SAMPLES.schema).write_parquet(folder / f"{kind}.parquet")
        client = LearnerClient(train, MODEL, directory=folder, home=folder, policy="p", recipe="r")
        client.start()
        try:
            client.wait(timeout=300)
            for turn in range(turns + 1):
                for kind, seconds in used.items():
                    before = used_seconds()
                    client.step(folder / f"{kind}.parquet", Objective.from_train(train), version=0)
                    if turn:  # the first ones read the tokenizer and allocate memory
                        seconds.append(used_seconds() - before)
        finally:
            client.close()
    return used


def replay_seconds(rows: list[dict[str, Any]]) -> float:
    """Return the CPU seconds in which the grammar runs over the answers once; an update does it
    three times: for the rows, the old policy and the optimizer step."""
    ids = [np.array(row["response_ids"]) for row in rows]
    starts = np.concatenate([np.eye(1, len(each), dtype=int)[0] for each in ids])
    flat = np.concatenate(ids)
    for _ in range(2):  # the first time reads the tokenizer
        before = time.process_time()
        replay(MODEL, flat, np.zeros(len(flat), int), starts, [CONSTRAINT])
    return time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rows", type=int, default=32)
    arguments = parser.parse_args()
    used = measure(arguments.turns, arguments.rows)
    free, masked = (statistics.median(used[kind]) for kind in ("free", "masked"))
    print(
        json.dumps(
            {
                "name": "masks",
                "value": round(masked / free, 3),
                "unit": "CPU seconds of an update with masks, by those without",
                "peer": None,
                "ratio": None,
                "free_s": round(free, 2),
                "masked_s": round(masked, 2),
                "replay_s": round(replay_seconds(make_rows(arguments.rows)), 4),
            }
        )
    )


if __name__ == "__main__":
    main()
