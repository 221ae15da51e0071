"""verl's own advantages, for tests to compare with: a program, because verl's imports warn.

It reads a JSON list of cases from standard input and writes what each gives: one row a response,
one number a token. A case has `estimator`, `scores` and `groups` a response, and `mask` a token;
`components` and `weights` for GDPO, `by_std` for GRPO.
"""

import json
import sys
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import get_adv_estimator_fn


class Config(dict[str, Any]):
    """The configuration that verl reads."""

    gamma = 1.0


def advantages(case: dict[str, Any]) -> list[list[float]]:
    mask = torch.tensor(case["mask"], dtype=torch.float64)
    last = _last(mask)
    rewards = torch.zeros_like(mask)
    rewards[torch.arange(len(mask)), last] = torch.tensor(case["scores"], dtype=torch.float64)
    arguments: dict[str, Any] = {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "index": np.array(case["groups"]),
        "config": Config(norm_adv_by_std_in_grpo=True),
    }
    if case["estimator"] == "grpo":
        arguments["norm_adv_by_std_in_grpo"] = case["by_std"]
    if case["estimator"] == "gdpo":
        arguments |= _components(case, mask)
    estimate: Any = get_adv_estimator_fn(case["estimator"])  # type: ignore[no-untyped-call]
    advantage, _ = estimate(**arguments)
    return [list(map(float, row)) for row in advantage]


def _last(mask: torch.Tensor) -> torch.Tensor:
    """Return the last sampled token of each response, where its reward is."""
    places = torch.arange(mask.shape[1]).expand_as(mask)
    return torch.where(mask > 0, places, -1).max(dim=1).values


def _components(case: dict[str, Any], mask: torch.Tensor) -> dict[str, Any]:
    """Return the rewards one by one; verl puts each at the last attended token."""
    ended = torch.arange(mask.shape[1]) <= _last(mask).unsqueeze(1)
    return {
        "config": Config(
            gdpo_reward_keys=list(case["components"]), gdpo_reward_weights=case["weights"]
        ),
        "non_tensor_batch": {k: np.array(v) for k, v in case["components"].items()},
        "batch": {"prompts": mask[:, :0], "attention_mask": ended.long()},
    }


if __name__ == "__main__":
    json.dump([advantages(case) for case in json.load(sys.stdin)], sys.stdout)
