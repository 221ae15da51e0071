"""A trainer of the backend tinker in this process, with the server of tests/tinker_server.py."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.trace import NoOpTracer
from tests.tinker_policy import Adapter, Tensors
from tests.tinker_server import TinkerServer
from tests.train.learner.conftest import write_rows

from ltrain_train.learner.objective import Objective
from ltrain_train.learner.protocol import Job
from ltrain_train.overlays import TINKER
from ltrain_transforms.recipe import Train

TINKER.add()

from ltrain_train.learner.tinker_backend.trainer import TinkerTrainer  # noqa: E402

Rows = list[dict[str, Any]]
MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
WIDTH = 64
"""Of the module in a tiny model."""


def tensors(adapter: Adapter) -> Tensors:
    """Return an adapter of one module of a tiny model, with numbers of the table."""
    rank = adapter.rank
    down = adapter.table[:rank, :WIDTH].astype(np.float32)
    up = adapter.table[:WIDTH, :rank].astype(np.float32)
    matrices = {"lora_A.weight": down, "lora_B.weight": np.ascontiguousarray(up)}
    return {f"{MODULE}.{part}": matrix.copy() for part, matrix in matrices.items()}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")


@pytest.fixture
def server() -> Iterator[TinkerServer]:
    with TinkerServer() as server:
        server.tensors = tensors
        yield server


def train(server: TinkerServer, **keys: Any) -> Train:
    """Return a [train] section for the server; the drift of random rows is no error."""
    section = {"base_model": server.model, "base_url": server.url}
    defaults = {"lora_rank": 4, "drift_warning": 90.0, "drift_limit": 99.0, "learning_rate": 0.1}
    return Train.model_validate(defaults | {"backend": "tinker", "tinker": section} | keys)


def objective(server: TinkerServer, **keys: Any) -> Objective:
    return Objective.from_train(train(server, **keys))


Start = Callable[..., TinkerTrainer]


@pytest.fixture
def start(server: TinkerServer, tiny: Path, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a trainer, with fields of its job."""
    trainers = []

    def start(at: TinkerServer = server, **fields: Any) -> TinkerTrainer:
        defaults: dict[str, Any] = {"base": tiny, "policy": "p", "journal": tmp_path / "journal"}
        job = replace(Job.from_train(train(at), **defaults), **fields)
        trainer = TinkerTrainer(job, NoOpTracer())
        trainers.append(trainer)
        return trainer

    yield start
    for trainer in trainers:
        trainer.close()


@pytest.fixture
def samples(make_rows: Callable[..., Rows], tmp_path: Path) -> Path:
    """Return a file of eight rows that were sampled at temperature 1."""
    return write_rows(plain(make_rows(8)), tmp_path)


def plain(rows: Rows) -> Rows:
    return [row | {"temperature": 1.0} for row in rows]
