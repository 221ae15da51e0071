"""Computes what the learner should, from the formulas, in plain torch and one full batch.

`python reference.py MODEL SAMPLES OPTIONS` prints JSON: the log-probabilities of each response
before and after `steps` AdamW steps, and each step's loss and gradient norm.
"""

import json
import sys
from typing import Any

import polars as pl
import torch
import transformers
from torch import Tensor

hugging_face: Any = transformers  # its functions have no types
Row = dict[str, Any]


def log_probs(model: Any, row: Row) -> Tensor:
    tokens = torch.tensor([row["prompt_ids"] + row["response_ids"]])
    logits: Tensor = model(tokens).logits[0] / row["temperature"]
    start = len(row["prompt_ids"])
    chosen = logits.log_softmax(-1)[start - 1 : -1]
    return chosen.gather(1, tokens[0, start:, None])[:, 0]


def vanilla(
    ratio: Tensor, advantage: Tensor, low: float = 0.2, high: float = 0.2, dual: float = 3.0
) -> Tensor:
    worse = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - low, 1 + high))
    return torch.where(advantage < 0, torch.minimum(worse, -advantage * dual), worse)


def cispo(
    ratio: Tensor, advantage: Tensor, log_prob: Tensor, low: float = 0.2, high: float = 0.2
) -> Tensor:
    return -ratio.clamp(1 - low, 1 + high).detach() * advantage * log_prob


def loss_of(model: Any, rows: list[Row], old: list[Tensor], options: dict[str, Any]) -> Any:
    total: Any = 0.0
    weights: Any = 0.0
    for row, before in zip(rows, old, strict=True):
        now = log_probs(model, row)
        sampled = torch.tensor(row["rollout_logprobs"])
        tis = options.get("correction") == "token_tis"
        ratio = (now - (before if tis else sampled)).exp()
        advantage = torch.tensor(row["advantages"])
        if options.get("loss", "vanilla") == "cispo":
            loss = cispo(ratio, advantage, now)
        else:
            loss = vanilla(ratio, advantage)
        if tis:
            loss = loss * (before - sampled).exp().clamp(max=options["cap"])
        weight = torch.tensor(row["loss_weight"]) * torch.tensor(row["response_mask"])
        total, weights = total + (weight * loss).sum(), weights + weight.sum()
    return total / weights


def main(directory: str, samples: str, options: dict[str, Any]) -> None:
    model = hugging_face.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    rows = pl.read_parquet(samples).to_dicts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.get("lr", 0.0), weight_decay=0.0)
    old = [log_probs(model, row).detach() for row in rows]
    losses, norms = [], []
    for _ in range(options.get("steps", 0)):
        loss = loss_of(model, rows, old, options)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        losses.append(float(loss))
        optimizer.step()
        old = [log_probs(model, row).detach() for row in rows]
    after = [log_probs(model, row).tolist() for row in rows]
    print(json.dumps({"log_probs": after, "loss": losses, "grad_norm": norms}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
