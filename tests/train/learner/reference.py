"""Computes what the learner should, from the formulas, in plain torch and one full batch.

`python reference.py` reads lines of JSON, each a model, samples and cases. For each of these it
prints a line with the results of the cases: the log-probabilities of each response after `steps`
AdamW steps, and each step's loss and gradient norm. With a path `weights` a case also writes the
weights after the steps.
"""

import json
import sys
import traceback
from contextlib import redirect_stdout
from functools import cache
from itertools import pairwise
from typing import Any

import numpy
import polars as pl
import torch
import transformers
import xgrammar
from safetensors.torch import save_file
from torch import Tensor

hugging_face: Any = transformers  # its functions have no types
Row = dict[str, Any]


def load(directory: str) -> Any:
    return hugging_face.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def distributions(model: Any, row: Row, temperature: float | None = None) -> Tensor:
    """Return the log-probabilities [response token, word] of one row."""
    tokens = torch.tensor([row["prompt_ids"] + row["response_ids"]])
    logits: Tensor = model(tokens).logits[0] / (temperature or row["temperature"])
    answer = logits[len(row["prompt_ids"]) - 1 : -1]
    forbidden = [~mask for mask in allowed_ids(model.name_or_path, row, answer.shape[1])]
    return answer.masked_fill(torch.stack(forbidden), -1e30).log_softmax(-1)


def allowed_ids(model: str, row: Row, vocab_size: int) -> list[Tensor]:
    """Return which ids [word] the grammar of its call allows at each response token."""
    masks = [torch.ones(vocab_size, dtype=torch.bool) for _ in row["response_ids"]]
    constraints = row["call_constraints"] or [None] * len(calls(row))
    for call, constraint in zip(calls(row), constraints, strict=True):
        if constraint is None:
            continue
        matcher = start_grammar(model, constraint, vocab_size)
        packed = xgrammar.allocate_token_bitmask(1, vocab_size)
        for position in range(*call.indices(len(masks))):
            if not row["response_mask"][position] or matcher.is_terminated():
                break
            matcher.fill_next_token_bitmask(packed)
            bits = numpy.unpackbits(packed.numpy().view("uint8")[0], bitorder="little")
            masks[position] = torch.from_numpy(bits[:vocab_size] == 1)
            if not matcher.accept_token(row["response_ids"][position]):
                return [torch.ones(vocab_size, dtype=torch.bool) for _ in masks]
    return masks


@cache
def compiler(model: str, vocab_size: int) -> Any:
    tokenizer = hugging_face.AutoTokenizer.from_pretrained(model)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
    return xgrammar.GrammarCompiler(info)


def start_grammar(model: str, constraint: str, vocab_size: int) -> Any:
    """Return the matcher of a constraint with a regular expression or a JSON schema."""
    content = json.loads(constraint)
    compiled = compiler(model, vocab_size)
    if content["kind"] == "regex":
        return xgrammar.GrammarMatcher(compiled.compile_regex(content["spec"]))
    return xgrammar.GrammarMatcher(compiled.compile_json_schema(content["spec"]))


def chosen(logp: Tensor, row: Row) -> Tensor:
    return logp.gather(1, torch.tensor(row["response_ids"])[:, None])[:, 0]


def log_probs(model: Any, rows: list[Row]) -> list[Tensor]:
    with torch.no_grad():
        return [chosen(distributions(model, row), row) for row in rows]


def calls(row: Row) -> list[slice]:
    ends = [*row["call_offsets"], len(row["response_ids"])]
    return [slice(start, end) for start, end in pairwise(ends)]


def vanilla(
    ratio: Tensor, advantage: Tensor, low: float = 0.2, high: float = 0.2, dual: float = 3.0
) -> Tensor:
    worse = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - low, 1 + high))
    return torch.where(advantage < 0, torch.minimum(worse, -advantage * dual), worse)


def cispo(
    ratio: Tensor, advantage: Tensor, log_prob: Tensor, low: float = 0.2, high: float = 0.2
) -> Tensor:
    return -ratio.clamp(1 - low, 1 + high).detach() * advantage * log_prob


def divergence(now: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """Return Schulman's estimators of the KL divergence of each token."""
    d = now - reference
    k2 = d.square() / 2
    values = {"k1": d, "abs": d.abs(), "k2": k2, "k3": (-d).exp() - 1 + d}
    value = values[estimator.removesuffix("+")]
    return k2 - k2.detach() + value.detach() if estimator.endswith("+") else value


def loss_of(model: Any, rows: list[Row], fixed: list[dict[str, Tensor]], case: Row) -> Any:
    total: Any = 0.0
    weights: Any = 0.0
    for row, known in zip(rows, fixed, strict=True):
        sft = case.get("kind") == "sft"
        logp = distributions(model, row, 1.0 if sft else None)
        now = chosen(logp, row)
        ratio = (now - known["old"]).exp()
        if sft:
            loss = -now
        elif case.get("loss", "vanilla") == "cispo":
            loss = cispo(ratio, known["advantages"], now) * known["factor"]
        else:
            dual = case.get("dual", 3.0)
            loss = vanilla(ratio, known["advantages"], dual=dual) * known["factor"]
        loss = loss - case.get("entropy", 0.0) * -(logp.exp() * logp).sum(-1)
        if case.get("kl") and case["kl_in"] == "loss":
            loss = loss + case["kl"] * divergence(now, known["reference"], case["kl_estimator"])
        weight = torch.tensor(row["loss_weight"]) * known["mask"]
        total, weights = total + (weight * loss).sum(), weights + weight.sum()
    return total / weights


def fixed_values(row: Row, before: Tensor, reference: Tensor, case: Row) -> dict[str, Tensor]:
    """Return what does not change in an update: old policy, mask, factor and advantages."""
    sampled, mask = torch.tensor(row["rollout_logprobs"]), torch.tensor(row["response_mask"])
    mask, gap = mask.clone(), before - sampled
    factor = torch.ones_like(gap)
    for call in calls(row):
        trained = mask[call] == 1
        if case.get("correction") == "token_tis":
            factor[call] = gap[call].exp().clamp(max=case["cap"])
        if case.get("correction") == "sequence_tis":
            factor[call] = gap[call][trained].sum().exp().clamp(max=case["cap"])
        ratios = {"geometric": gap[call][trained].mean().exp()[None]}
        ratios["token_veto"] = gap[call][trained].exp()
        for ratio in ratios.get(case.get("rejection", ""), []):
            if not case["min"] <= ratio <= case["max"]:
                mask[call] = 0
    advantages = torch.tensor(row["advantages"])
    if case.get("kl") and case["kl_in"] == "reward":
        advantages = advantages - case["kl"] * divergence(before, reference, case["kl_estimator"])
    old = before if case.get("correction", "bypass") != "bypass" else sampled
    values = {"old": old, "mask": mask, "factor": factor, "advantages": advantages}
    return values | {"reference": reference}


def train(directory: str, rows: list[Row], case: Row) -> Row:
    model = load(directory)
    decay = case.get("weight_decay", 0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=case.get("lr", 0.0), weight_decay=decay)
    reference = log_probs(load(case.get("reference", directory)), rows)
    losses, norms = [], []
    for _ in range(case.get("steps", 0)):
        known = zip(rows, log_probs(model, rows), reference, strict=True)
        fixed = [fixed_values(*each, case) for each in known]
        loss = loss_of(model, rows, fixed, case)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), case.get("clip", 1))))
        losses.append(float(loss))
        optimizer.step()
    if "weights" in case:
        tensors = {name: x.detach().clone() for name, x in model.named_parameters()}
        save_file(tensors, case["weights"])
    after = [x.tolist() for x in log_probs(model, rows)]
    return {"log_probs": after, "loss": losses, "grad_norm": norms}


def answer(line: str) -> Row:
    """Return the results of a request, or its error."""
    directory, samples, cases = json.loads(line)
    try:
        rows = pl.read_parquet(samples).to_dicts()
        return {"results": [train(directory, rows, case) for case in cases]}
    except Exception:  # the test that asked for it fails, and the others go on
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    answers = sys.stdout
    with redirect_stdout(sys.stderr):
        for line in sys.stdin:
            print(json.dumps(answer(line)), file=answers, flush=True)
