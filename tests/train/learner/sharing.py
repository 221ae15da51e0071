"""Compares the prefix tree with rows that are alone: `python sharing.py MODEL SAMPLES OPTIONS`.

For each of OPTIONS, a list of `[train]` sections, both paths make one optimizer step. Prints JSON:
what each did, and how far apart their log-probabilities, gradients and weights are.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from ltrain_train.learner.objective import Objective
from ltrain_train.learner.protocol import Job
from ltrain_train.learner.samples import read_rows
from ltrain_train.learner.verl_backend import batch, cluster, engine, loss, rank
from ltrain_train.learner.weights import read_vocab_size
from ltrain_train.processes import free_port
from ltrain_transforms.recipe import Train


def unshared(base: Path, directory: Path) -> Path:
    """Copy a model with a kind of layer in its config.json that makes the learner pack no rows."""
    shutil.copytree(base, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(
        json.dumps(config | {"layer_types": ["chunked_attention"] * config["num_hidden_layers"]})
    )
    return directory


def start(job: Job) -> Any:
    os.environ.pop("VERL_ENGINE_VENDOR", None)
    port = free_port()
    os.environ.update(cluster.rank_environment(0, 1, port), MASTER_PORT=str(port))
    worker: Any = rank.RankWorker(job)
    worker.reset()
    worker.set_loss_fn(loss.objective_loss)
    return worker


def flat(tensors: Iterable[Tensor]) -> Tensor:
    full = [getattr(x, "full_tensor", lambda x=x: x)() for x in tensors]
    return torch.cat([x.detach().flatten().clone() for x in full])


def measure(base: Path, samples: Path, train: Train) -> tuple[dict[str, Tensor], dict[str, Any]]:
    job = Job.from_train(train, base=base, policy="p", recipe="")
    rows = read_rows(samples, vocab_size=read_vocab_size(base))
    tokens, shared = rank.batch_tokens(job), rank.shares_prefixes(job)
    made = batch.make_batch(rows, ranks=1, tokens=tokens, shared=shared)
    worker = start(job)
    trained = [x for x in worker.engine.module.parameters() if x.requires_grad]
    first = flat(trained)
    answer = worker.infer_batch(engine.as_inference_batch(made.data, entropy=True))
    values = {each: batch.response_values(answer, each, made) for each in ("log_probs", "entropy")}
    tensors = {name: torch.cat(rows) for name, rows in values.items()}
    made = batch.make_batch(rows, ranks=1, tokens=tokens, shared=shared)
    data = engine.as_training_batch(made.data, Objective.from_train(train))
    metrics = engine.read_metrics(worker.train_batch(data))
    state = worker.engine.optimizer.state
    tensors["gradient"] = flat([state[x]["exp_avg"] for x in trained if x in state])
    tensors["weights"] = flat(trained)
    summary: dict[str, Any] = {
        "moved": float((tensors["weights"] - first).norm()),
        "computed": made.computed_tokens,
    }
    summary |= {"metrics": metrics, "engine": type(worker.engine).__name__}
    distributed.destroy_process_group()
    return tensors, summary


def compare(base: Path, samples: Path, options: dict[str, Any]) -> dict[str, Any]:
    train = Train(**options)
    with tempfile.TemporaryDirectory() as folder:
        plain, first = measure(unshared(base, Path(folder) / "plain"), samples, train)
    tree, second = measure(base, samples, train)
    summary: dict[str, Any] = {
        name: distance(plain[name], tree[name]) for name in ("gradient", "weights")
    }
    for name in ("log_probs", "entropy"):
        summary[name] = float((plain[name] - tree[name]).abs().max())
    return summary | {"plain": first, "tree": second}


def distance(one: Tensor, other: Tensor) -> float:
    """Return the distance of two vectors, relative to the length of the first."""
    return float((one - other).norm() / one.norm())


if __name__ == "__main__":
    base, samples = map(Path, sys.argv[1:3])
    print(json.dumps([compare(base, samples, each) for each in json.loads(sys.argv[3])]))
