"""Rows in a prefix tree train as each does alone."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ltrain_train.learner.verl_backend.device import learner_environment

Rows = list[dict[str, Any]]
PER_TOKEN = (
    *("response_ids", "response_mask", "rollout_logprobs"),
    *("advantages", "token_rewards", "loss_weight"),
)
TRAIN = {
    "dtype": "fp32",
    "learning_rate": 1e-3,
    "tokens_per_micro_batch": 128,
    "entropy_coefficient": 0.1,
}


def test_shared_prefixes_change_no_number(
    tiny: Path, make_rows: Callable[..., Rows], write: Callable[[Rows], Path]
) -> None:
    options = [TRAIN | {"lora_rank": rank} for rank in (0, 4)]
    options.append(TRAIN | {"lora_rank": 4, "dtype": "bf16"})
    samples = write([*make_rows(24, seed=3), *related_rows(make_rows(1, seed=4)[0])])
    *exact, rounded = compare_paths(tiny, samples, options)
    for result in exact:
        plain, tree = result["plain"], result["tree"]
        assert (plain["engine"], tree["engine"]) == ("RowsEngine", "TreeEngine")
        assert plain["computed"] > 1.2 * tree["computed"]
        assert result["log_probs"] < 1e-5
        assert result["entropy"] < 1e-5
        assert result["gradient"] < 1e-5
        assert (
            result["weights"] < 5e-6
        )  # AdamW's first step makes much of small gradients' rounding
        assert plain["moved"] > 0
        assert tree["metrics"] == pytest.approx(plain["metrics"], rel=1e-4, abs=1e-6)
    assert rounded["log_probs"] < 0.07  # two of bfloat16's steps at 6


def related_rows(row: dict[str, Any]) -> Rows:
    """Return the row twice, the row without its last token, and one of its first two tokens."""
    shorter = row | {name: row[name][:-1] for name in PER_TOKEN}
    shortest = row | {name: row[name][:1] for name in (*PER_TOKEN, "prompt_ids")}
    related = [row, row, shorter, shortest]
    return [each | {"sample_id": f"related {number}"} for number, each in enumerate(related)]


def compare_paths(
    model: Path, samples: Path, options: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Train the same rows with and without the tree, in another process."""
    script = Path(__file__).with_name("sharing.py")
    done = subprocess.run(
        [sys.executable, script, model, samples, json.dumps(options)],
        env=os.environ | learner_environment(1),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    result: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return result
