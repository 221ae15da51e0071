"""`ltrain run` with the backend tinker: the learner is a server of the Tinker API, vLLM a fake."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tinker_policy import Adapter, Tensors
from tests.tinker_server import TinkerServer
from tests.train.tiny import write_model

from ltrain_train.policy import Policies, read_tinker_weights
from ltrain_train.processes import free_port

TESTS = Path(__file__).parents[2]
WIDTH = 64
MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
KEY = "tml-of-the-test"
RECIPE = """
[rollout]
tasks = "tasks.jsonl"
agent = "kills_agent:solve"
reward = "kills_agent:score"
tasks_per_wave = 4
rollouts_per_task = 4
[source]
run = "tinker"
[[policy]]
name = "p"
model = "model"
[[reward]]
name = "r"
evaluation = "reward"
[serve]
publish = "adapter"
[train]
backend = "tinker"
lora_rank = 4
updates = 3
drift_warning = 900.0
drift_limit = 999.0
[train.tinker]
base_model = "tiny"
base_url = "{url}"
"""


def tensors(adapter: Adapter) -> Tensors:
    down = adapter.table[: adapter.rank, :WIDTH].astype(np.float32)
    up = np.ascontiguousarray(adapter.table[:WIDTH, : adapter.rank].astype(np.float32))
    return {f"{MODULE}.lora_A.weight": down.copy(), f"{MODULE}.lora_B.weight": up}


@pytest.fixture
def server() -> Iterator[TinkerServer]:
    with TinkerServer() as server:
        server.tensors, server.limit = tensors, 1
        yield server


@pytest.fixture
def environ(server: TinkerServer, tmp_path: Path) -> dict[str, str]:
    """Write a project, and return the environment of its commands."""
    model = write_model(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    # the fake vLLM has ids of its own; the server takes them modulo its table
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": 2**31 - 1}))
    (tmp_path / "ltrain.toml").write_text(RECIPE.format(url=server.url))
    shutil.copy(TESTS / "train" / "loop" / "kills" / "kills_agent.py", tmp_path)
    tasks = [json.dumps({"id": f"t{number}", "input": f"w{number} w7"}) for number in range(8)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(tasks))
    vllm = tmp_path / "vllm"
    fake = f'[ "$1" = -I ] && exit 0\nset -- {TESTS}/fake_vllm.py "$@"'
    vllm.write_text(f'#!/bin/sh\n{fake}\nexec {sys.executable} "$@"\n')
    vllm.chmod(0o755)
    otlp, store, gateway = (f"http://127.0.0.1:{free_port()}" for _ in range(3))
    inherited = {name: text for name, text in os.environ.items() if name[:7] != "LTRAIN_"}
    return inherited | {
        "LTRAIN_HOME": str(tmp_path / "home"),
        "LTRAIN_STORE": store,
        "LTRAIN_GATEWAY": gateway,
        "LTRAIN_VLLM_PYTHON": str(vllm),
        "OTEL_EXPORTER_OTLP_ENDPOINT": otlp,
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain,openai",
        "TINKER_API_KEY": KEY,
    }


def start(folder: Path, environ: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ltrain", "run", "ltrain.toml"]
    pipe: Any = subprocess.PIPE
    return subprocess.Popen(
        command, env=environ, cwd=folder, stdout=pipe, stderr=subprocess.STDOUT, text=True
    )


def test_a_run_that_is_killed_makes_each_update_once(
    server: TinkerServer, environ: dict[str, str], tmp_path: Path
) -> None:
    policies, until = Policies(tmp_path / "home"), time.monotonic() + 120
    with start(tmp_path, environ) as run:
        while run.poll() is None and 1 not in policies.versions("p"):
            assert time.monotonic() < until
            time.sleep(0.05)
        run.send_signal(signal.SIGKILL)
        output, _ = run.communicate()
    assert run.returncode == -signal.SIGKILL, output
    with start(tmp_path, environ) as run:
        output, _ = run.communicate(timeout=240)
    assert run.returncode == 0, output
    # an update that was registered and not promoted is made again from its parent
    weights = read_tinker_weights(policies.path("p", policies.current("p")))
    assert weights is not None and weights.sampler is not None
    assert server.checkpoints[weights.sampler].steps == 3
    assert server.adapters == {}
    for file in (tmp_path / "home").rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file
