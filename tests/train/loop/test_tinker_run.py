"""A run without a GPU and without weights: a fake Tinker server trains, and samples the waves."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fork_server import LTRAIN
from tests.tinker_model import END, teach, write_model
from tests.tinker_server import TinkerServer

from ltrain_train.policy import Policies, read_tinker_weights
from ltrain_train.processes import free_port

AGENT = """
import json
from urllib.request import Request, urlopen


def solve(task, llm):
    message = {"role": "user", "content": task["input"]}
    body = {"model": llm.model, "messages": [message], "max_tokens": 4}
    request = Request(llm.base_url + "/chat/completions", json.dumps(body).encode())
    request.add_header("authorization", "Bearer " + llm.api_key)
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def score(task, result):
    return float("yes" in result)
"""
RECIPE = """
[source]
run = "tinker"
[[policy]]
name = "p"
model = "model"
[[reward]]
name = "answer"
evaluation = "reward"
[rollout]
tasks = "tasks.jsonl"
agent = "tinker_agent:solve"
reward = "tinker_agent:score"
rollouts_per_task = 4
[train]
backend = "tinker"
lora_rank = 4
learning_rate = 0.5
updates = 2
[train.tinker]
base_url = "{url}"
[serve]
on = "tinker"
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TinkerServer]:
    """Serve a model that says yes as often as no."""
    tokenizer = write_model(tmp_path / "model", ["yes", "no"])
    line, yes, no = map(tokenizer.token_to_id, ("Ċ", "yes", "no"))
    with TinkerServer() as server:
        teach(server, line, yes, END)
        teach(server, no, END)
        server.base[line, [yes, no]] = 2.0
        yield server


def environment(home: Path) -> dict[str, str]:
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("LTRAIN_")}
    names = ("LTRAIN_STORE", "LTRAIN_GATEWAY", "OTEL_EXPORTER_OTLP_ENDPOINT")
    addresses = {name: f"http://127.0.0.1:{free_port()}" for name in names}
    key = {"TINKER_API_KEY": "tml-test"}
    return {**inherited, **addresses, **key, "LTRAIN_HOME": str(home)}


def test_a_tinker_server_trains_and_samples_a_run(server: TinkerServer, tmp_path: Path) -> None:
    (tmp_path / "tinker_agent.py").write_text(AGENT)
    (tmp_path / "ltrain.toml").write_text(RECIPE.format(url=server.url))
    tasks = [{"id": f"t{number}", "input": f"question {number}"} for number in range(4)]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    home = tmp_path / "home"
    done = subprocess.run(
        [LTRAIN, "run", "ltrain.toml"],
        cwd=tmp_path,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    policies = Policies(home)
    assert policies.current("p") == 2
    paths = []
    for version in (1, 2):
        assert policies.read_version("p", version).artifact == "adapter"
        weights = read_tinker_weights(policies.path("p", version))
        assert weights is not None and weights.sampler in server.checkpoints
        paths.append(weights.sampler)
    sampled = [path for path in server.samplers.values() if path is not None]
    assert not set(sampled) & set(paths)  # in training runs of the gateway's own
    for path, own in zip(paths, sampled, strict=True):
        assert (server.checkpoints[path].table == server.checkpoints[own].table).all()
    waves = [line.split() for line in done.stdout.splitlines() if line.startswith("train ")]
    assert [wave[1:3] for wave in waves] == [["0", "0"], ["1", "1"]]
    assert [wave[-1] for wave in waves] == ["0", "0"]  # the drift
    assert server.keys - {""} == {"tml-test"}
