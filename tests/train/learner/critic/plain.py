"""Trains a policy and its critic from the formulas, in plain torch and one full batch.

`python plain.py MODEL SAMPLES CASES` prints JSON, for each of CASES: the losses and gradient norms
of `steps` updates of both, and, with a path `critic`, how far the critic's weights are from those
in a checkpoint of verl. With a path `weights` it writes the policy's weights.
"""

import json
import sys
from pathlib import Path
from typing import Any

import polars as pl
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, distributed

hugging_face: Any = transformers  # its functions have no types
Row = dict[str, Any]


def load_critic(directory: str) -> Any:
    critic = hugging_face.AutoModelForTokenClassification.from_pretrained(
        directory, dtype=torch.float32, num_labels=1
    )
    for parameter in critic.score.parameters():
        torch.nn.init.zeros_(parameter)
    return critic


def outputs(model: Any, row: Row) -> Tensor:
    """Return the model's output at the position before each response token."""
    tokens = torch.tensor([row["prompt_ids"] + row["response_ids"]])
    result: Tensor = model(tokens).logits[0][len(row["prompt_ids"]) - 1 : -1]
    return result


def log_probs(policy: Any, row: Row) -> Tensor:
    logp = (outputs(policy, row) / row["temperature"]).log_softmax(-1)
    chosen: Tensor = logp.gather(1, torch.tensor(row["response_ids"])[:, None])[:, 0]
    return chosen


def steps_of(rows: list[Row]) -> dict[str, list[tuple[int, int]]]:
    """Return row and token of each step of each execution, in the order of the calls."""
    steps: dict[str, list[tuple[int, int, int]]] = {}
    for number, row in enumerate(rows):
        for token, is_sampled in enumerate(row["response_mask"]):
            call = sum(offset <= token for offset in row["call_offsets"]) - 1
            if is_sampled:
                step = (row["call_positions"][call], number, token)
                steps.setdefault(row["execution_id"], []).append(step)
    return {name: [each[1:] for each in sorted(found)] for name, found in steps.items()}


def estimate(rows: list[Row], rewards: list[Tensor], values: list[Tensor], case: Row) -> Any:
    """Return whitened advantages and returns: the sum of (gamma lam)^k delta of each later step."""
    gamma, lam = case["gamma"], case["lam"]
    raw, returns = ([torch.zeros_like(x) for x in values] for _ in range(2))
    for steps in steps_of(rows).values():
        value = [float(values[i][j]) for i, j in steps] + [0.0]
        delta = [
            float(rewards[i][j]) + gamma * value[t + 1] - value[t] for t, (i, j) in enumerate(steps)
        ]
        for t, (i, j) in enumerate(steps):
            total = sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, len(steps)))
            raw[i][j], returns[i][j] = total, total + value[t]
    masks = [torch.tensor(row["response_mask"]) == 1 for row in rows]
    sampled = torch.cat(raw)[torch.cat(masks)]
    whitened = [(x - sampled.mean()) / (sampled.var() + 1e-8).sqrt() for x in raw]
    return whitened, returns


def weighted_mean(losses: list[Tensor], rows: list[Row]) -> Tensor:
    weights = [
        torch.tensor(row["loss_weight"]) * torch.tensor(row["response_mask"]) for row in rows
    ]
    return (torch.cat(losses) * torch.cat(weights)).sum() / torch.cat(weights).sum()


def step(model: Any, optimizer: Any, loss: Any) -> tuple[float, float]:
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach()), float(norm)


def train(directory: str, rows: list[Row], case: Row) -> Row:
    policy = hugging_face.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    critic = load_critic(directory)
    for name, parameter in critic.named_parameters():
        parameter.requires_grad_("score" in name or not case.get("head_only", False))
    trained = [x for x in critic.parameters() if x.requires_grad]
    of_policy = torch.optim.AdamW(policy.parameters(), lr=case["lr"], weight_decay=0.0)
    of_critic = torch.optim.AdamW(trained, lr=case["critic_lr"], weight_decay=0.0)
    with torch.no_grad():
        other = hugging_face.AutoModelForCausalLM.from_pretrained(
            case["reference"], dtype=torch.float32
        )
        reference = [log_probs(other, row) for row in rows]
    done: Row = {"loss": [], "grad_norm": [], "value_loss": [], "critic_grad_norm": []}
    for _ in range(case["steps"]):
        with torch.no_grad():
            values = [outputs(critic, row)[:, 0] for row in rows]
            now = [log_probs(policy, row) for row in rows]
        kl = case.get("kl", 0.0)
        penalties = [kl * (a - b) for a, b in zip(now, reference, strict=True)]
        rewards = [
            torch.tensor(row["token_rewards"]) - x for row, x in zip(rows, penalties, strict=True)
        ]
        advantages, returns = estimate(rows, rewards, values, case)
        value_losses, policy_losses = [], []
        for row, old, wanted, advantage in zip(rows, values, returns, advantages, strict=True):
            value = outputs(critic, row)[:, 0]
            clipped = old + (value - old).clamp(-case["value_clip"], case["value_clip"])
            errors = torch.maximum((value - wanted).square(), (clipped - wanted).square())
            value_losses.append(errors / 2)
            logp = log_probs(policy, row)
            ratio = (logp - torch.tensor(row["rollout_logprobs"])).exp()
            worse = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
            bounded = torch.where(advantage < 0, torch.minimum(worse, -advantage * 3.0), worse)
            if case.get("loss") == "cispo":
                bounded = -ratio.clamp(0.8, 1.2).detach() * advantage * logp
            policy_losses.append(bounded)
        results = {
            "value_": step(critic, of_critic, weighted_mean(value_losses, rows)),
            "": step(policy, of_policy, weighted_mean(policy_losses, rows)),
        }
        for name, (loss, norm) in results.items():
            done[f"{name}loss"].append(loss)
            done["grad_norm" if not name else "critic_grad_norm"].append(norm)
    if "weights" in case:
        save_file({n: x.detach().clone() for n, x in policy.named_parameters()}, case["weights"])
    if "critic" in case:
        done["distance"] = distance(critic, Path(case["critic"]))
    return done


def distance(critic: Any, checkpoint: Path) -> float:
    """Return the distance of the weights from those in verl's file, relative to their length."""
    [file] = checkpoint.glob("model_world_size_1_rank_0.pt")
    saved = torch.load(file, weights_only=False)
    names = [name for name, _ in critic.named_parameters()]
    ours = torch.cat([x.detach().flatten() for x in critic.parameters()])
    theirs = torch.cat([saved[name].full_tensor().flatten() for name in names])
    return float((ours - theirs).norm() / ours.norm())


def main(directory: str, samples: str, cases: list[Row]) -> None:
    distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    rows = pl.read_parquet(samples).to_dicts()
    print(json.dumps([train(directory, rows, case) for case in cases]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
