"""Outcome estimators that verl has too give verl's numbers, on random groups and masks."""

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

from ltrain_transforms.estimators.frames import MEMBERS, OutcomeSettings
from ltrain_transforms.estimators.registry import ESTIMATORS

PROGRAM = Path(__file__).with_name("verl_advantages.py")
SEEDS = range(12)
TOKENS = 9
VERL_ESTIMATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {"by_std": True}),
    "dr_grpo": ("grpo", {"by_std": False}),
    "rloo": ("rloo", {}),
    "opo": ("opo", {}),
    "reinforce_pp": ("reinforce_plus_plus", {}),
    "reinforce_pp_baseline": ("reinforce_plus_plus_baseline", {}),
    "grpo_passk": ("grpo_passk", {}),
    "gdpo": ("gdpo", {"weights": [1.0, 0.25, 2.0]}),
    "lightning": ("grpo", {"by_std": True}),
}
"""By the name here: verl's name and the arguments of its function."""


def batch(seed: int) -> dict[str, Any]:
    """Return random groups of two to six in random order, with holes in the masks."""
    random = Random(seed)
    groups = [g for g in range(random.randint(1, 5)) for _ in range(random.randint(2, 6))]
    random.shuffle(groups)
    many = random.choice([[0.0, 1.0], [each / 8 for each in range(-8, 9)]])
    masks = [[random.randint(0, 1) for _ in range(TOKENS)] for _ in groups]
    for mask in masks:
        mask[random.randrange(TOKENS)] = 1  # a response has a token
    components = {name: [random.choice(many) for _ in groups] for name in ("a", "b", "c")}
    scores = [random.choice(many) for _ in groups]
    return {"groups": groups, "scores": scores, "mask": masks, "components": components}


def members(case: dict[str, Any], calls: list[int] | None = None) -> pl.DataFrame:
    count = len(case["groups"])
    components = {f"reward:{name}": values for name, values in case["components"].items()}
    return pl.DataFrame(
        {
            "group": case["groups"],
            "peers": [case["groups"].count(group) for group in case["groups"]],
            "track": [0] * count,
            "end": list(range(count)),
            "reward": case["scores"],
            "calls": calls or [1] * count,
            "tokens": [float(sum(mask)) for mask in case["mask"]],
            **components,
        },
        {**MEMBERS, **dict.fromkeys(components, pl.Float64())},
    )


def transitions_of(case: dict[str, Any], calls: list[int]) -> dict[str, Any]:
    """Return a response for each call of an execution, with its execution's score."""
    repeated = [row for row, count in enumerate(calls) for _ in range(count)]
    return {name: [case[name][row] for row in repeated] for name in ("groups", "scores", "mask")}


@pytest.fixture(scope="module")
def verls() -> dict[str, list[list[list[float]]]]:
    """Return verl's advantages of every estimator and seed, from one process."""
    requests: list[dict[str, Any]] = []
    for name, (estimator, more) in VERL_ESTIMATORS.items():
        for seed in SEEDS:
            case = batch(seed)
            if name == "lightning":
                case = transitions_of(case, lengths(seed, case))
            requests.append({**case, "estimator": estimator, **more})
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], input=json.dumps(requests), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    responses = json.loads(done.stdout)
    return {
        name: responses[at * len(SEEDS) : (at + 1) * len(SEEDS)]
        for at, name in enumerate(VERL_ESTIMATORS)
    }


def lengths(seed: int, case: dict[str, Any]) -> list[int]:
    random = Random(-1 - seed)
    return [random.randint(1, 4) for _ in case["groups"]]


@pytest.mark.parametrize("name", VERL_ESTIMATORS)
def test_it_equals_verls(name: str, verls: dict[str, list[list[list[float]]]]) -> None:
    weights = dict(zip(("reward:a", "reward:b", "reward:c"), (1.0, 0.25, 2.0), strict=True))
    moved = False
    for seed, expected in zip(SEEDS, verls[name], strict=True):
        case = batch(seed)
        calls = lengths(seed, case) if name == "lightning" else None
        frame = members(case, calls)
        advantages = ESTIMATORS[name].function(frame, OutcomeSettings(weights=weights)).to_list()
        if calls is not None:
            repeated = zip(advantages, calls, strict=True)
            advantages = [one for one, count in repeated for _ in range(count)]
            case = transitions_of(case, calls)
        tokens = [
            [one * on for on in mask] for one, mask in zip(advantages, case["mask"], strict=True)
        ]
        assert [*chain(*tokens)] == pytest.approx([*chain(*expected)], abs=1e-5)
        moved = moved or any(abs(one) > 0.1 for one in advantages)
    assert moved, "all advantages were 0, which proves nothing"
