"""Rows of text_to_sql by recorded token ids, and by rendering the same traces without ids.

A wave of SmolLM2 is stored once. The second build sees no ids, no log-probabilities and no version.
Compared are the rows that are kept, the tokens, the log-probabilities of the server with those of a
forward pass, and the gradient of an update. With `--updates` both ways train, too.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import torch
import transformers
from benchmarks.learn import environment
from benchmarks.support.without_ids import without_ids

from ltrain_collector.store import Store
from ltrain_train.runs import Journal
from ltrain_transforms.datasets import Dataset, build
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rendering import find_served

EXAMPLE = Path("examples/text_to_sql")
MODEL = Path(".ltrain/models/smollm2")
POLICY = 'name = "sql"\n'
RENDERED = f'{POLICY}token_source = "rendered"\n'
hugging_face: Any = transformers  # its functions have no types


@dataclass(frozen=True, slots=True)
class Call:
    """One trained call of a row."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    logprobs: tuple[float, ...]
    weights: tuple[float, ...]
    """The advantage of each token times its weight in the loss."""
    temperature: float

    def trains_as(self, other: "Call") -> bool:
        """Return whether both have the same gradient."""
        return replace(self, logprobs=()) == replace(other, logprobs=())


def calls_of(samples: pl.DataFrame) -> Iterator[tuple[str, Call]]:
    """Yield the id and the tokens of each call of the rows."""
    for row in samples.iter_rows(named=True):
        ids, mask = row["response_ids"], row["response_mask"]
        bounds = pairwise([*row["call_offsets"], len(ids)])
        for call, (begin, limit) in zip(row["transition_ids"], bounds, strict=True):
            end = begin + sum(mask[begin:limit])
            weights = (a * w for a, w in zip(row["advantages"], row["loss_weight"], strict=True))
            yield (
                call,
                Call(
                    prompt=(*row["prompt_ids"], *ids[:begin]),
                    response=tuple(ids[begin:end]),
                    logprobs=tuple(row["rollout_logprobs"][begin:end]),
                    weights=tuple(weights)[begin:end],
                    temperature=row["temperature"],
                ),
            )


def run(
    folder: Path,
    updates: int,
    *,
    rendered: bool = False,
    tasks: int | None = None,
    seed: int,
    temperature: float = 0.6,
) -> Journal:
    """Run the example in a folder, without validation if the number of tasks is given."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    recipe = folder / "ltrain.toml"
    text = recipe.read_text().replace("timeout = 60\n", f"timeout = 60\nseed = {seed}\n", 1)
    if rendered:
        text = text.replace(POLICY, RENDERED)
    text = text.replace("temperature = 0.6", f"temperature = {temperature}")
    if tasks is not None:
        text = text.replace('validation = "val.jsonl"\n', "")
        text = text.replace("tasks_per_wave = 12", f"tasks_per_wave = {tasks}")
    recipe.write_text(text)
    module = "benchmarks.support.without_ids" if rendered else "ltrain"
    command = [sys.executable, "-m", module, "run", str(recipe), "--model", str(MODEL)]
    variables = environment(folder) | {"PYTHONPATH": os.getcwd()}
    subprocess.run([*command, "--updates", str(updates)], check=True, env=variables, stdout=2)
    journal = Journal.load(folder / ".ltrain" / "runs" / "text-to-sql")
    assert journal is not None
    return journal


def build_both(folder: Path) -> tuple[Dataset, Dataset]:
    """Build the first wave of a run with recorded ids, and without them."""
    home, text = folder / ".ltrain", (folder / "ltrain.toml").read_text()
    text = text.replace("max_groups = 5", "# all groups")
    options: dict[str, Any] = {"mode": "train", "wave": 0}
    with Store.open(f"chdb://{home / 'store'}") as store:
        (folder / "recorded.toml").write_text(text)
        recipe = Recipe.load(folder / "recorded.toml")
        recorded = build(store, recipe, folder / "recorded", **options)
        (folder / "rendered.toml").write_text(text.replace(POLICY, RENDERED))
        recipe = Recipe.load(folder / "rendered.toml")
        served = find_served(recipe, home / "policies", folder)
        with without_ids():
            rendered = build(store, recipe, folder / "rendered", served=served, **options)
    return recorded, rendered


class Policy:
    """The served model, in float32."""

    def __init__(self, folder: Path) -> None:
        self.model = hugging_face.AutoModelForCausalLM.from_pretrained(folder).float()

    def log_probs(self, call: Call) -> torch.Tensor:
        """Return the log-probability of each token of a response."""
        ids = torch.tensor([call.prompt + call.response])
        logits = self.model(ids, logits_to_keep=len(call.response) + 1).logits[0, :-1]
        scores = (logits / call.temperature).log_softmax(-1)
        chosen: torch.Tensor = scores.gather(1, ids[0, -len(call.response) :, None])[:, 0]
        return chosen

    def gradient(self, calls: list[Call]) -> torch.Tensor:
        """Return the gradient of an update whose policy is the one that sampled."""
        for each in self.model.parameters():
            each.grad = torch.zeros_like(each)
        for call in calls:
            if any(call.weights):
                loss: Any = -(torch.tensor(call.weights) * self.log_probs(call)).sum()
                loss.backward()
        return torch.cat([each.grad.flatten() for each in self.model.parameters()])


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    wide = one.double(), other.double()
    return round(float(wide[0] @ wide[1] / (wide[0].norm() * wide[1].norm())), 4)


def likeness(recorded: Call, rendered: Call) -> str:
    """Return how the tokens of two answers differ."""
    if recorded.response == rendered.response:
        return "equal"
    is_start = recorded.response[: len(rendered.response)] == rendered.response
    return "equal without the end" if is_start else "other"


def compare(recorded: Dataset, rendered: Dataset, policy: Policy) -> Iterator[dict[str, Any]]:
    """Yield the figures of the two datasets."""
    first, second = (dict(calls_of(each.table("samples"))) for each in (recorded, rendered))
    both = [call for call in first if call in second]
    prompts = sum(first[call].prompt == second[call].prompt for call in both)
    drops = rendered.drops.filter(stage="rows")["reason"].to_list()
    yield {
        "rows": [recorded.counts["samples"], rendered.counts["samples"]],
        "calls": [len(first), len(second)],
        "left_out": dict(Counter(drops)),
        "other_prompts": len(both) - prompts,
        "answers": dict(Counter(likeness(first[call], second[call]) for call in both)),
    }
    yield {"log_probs": differences(first, second, both, policy)}
    same = [call for call in both if first[call].trains_as(second[call])]
    common = policy.gradient([first[call] for call in same])
    changed = [call for call in both if call not in same]
    one, other = (policy.gradient([each[call] for call in changed]) for each in (first, second))
    missing = policy.gradient([first[call] for call in first if call not in second])
    yield {
        "calls_with_equal_gradient": len(same),
        "cosine": cosine(common + one + missing, common + other),
        "cosine_of_calls_in_both": cosine(common + one, common + other),
    }


@torch.no_grad()
def differences(
    first: dict[str, Call], second: dict[str, Call], both: list[str], policy: Policy
) -> dict[str, float]:
    """Return the differences of a forward pass on rendered tokens to the server, by token."""
    tokens, answers = list[float](), list[float]()
    for call in both:
        ours, server = policy.log_probs(second[call]), torch.tensor(first[call].logprobs)
        if likeness(first[call], second[call]) == "other":
            answers.append(float(ours.sum() - server.sum()))
        else:
            tokens += (ours - server[: len(ours)]).abs().tolist()
    result = {"mean": sum(tokens) / len(tokens), "largest": max(tokens)}
    if answers:
        result |= {"other_answers": len(answers), "mean_of_these": sum(answers) / len(answers)}
    return {name: float(f"{value:.3g}") for name, value in result.items()}


def curve(journal: Journal) -> list[float]:
    return [round(wave.evaluations["reward"], 3) for wave in journal.waves if wave.mode == "val"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=12, help="of 8 rollouts each")
    parser.add_argument("--updates", type=int, default=0, help="of both ways, with validation")
    parser.add_argument("--temperature", type=float, default=0.6, help="of the compared wave")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ltrain-rendered-") as folder:
        place = Path(folder)
        if options.tasks:
            wave = {"tasks": options.tasks, "temperature": options.temperature}
            run(place / "wave", 1, seed=options.seed, **wave)
            recorded, rendered = build_both(place / "wave")
            for figures in compare(recorded, rendered, Policy(MODEL)):
                print(json.dumps(figures), flush=True)
        for name in ("recorded", "rendered") if options.updates else ():
            is_rendered = name == "rendered"
            journal = run(place / name, options.updates, rendered=is_rendered, seed=options.seed)
            print(json.dumps({name: curve(journal)}), flush=True)


if __name__ == "__main__":
    main()
