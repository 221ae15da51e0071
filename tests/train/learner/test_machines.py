"""Learners on a Ray cluster of two nodes that `ray start` has started."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file
from tests.train.learner.test_runs import OBJECTIVE, service_of

from ltrain_train.errors import BadRun
from ltrain_train.learner.client import LearnerClient
from ltrain_train.processes import free_port, is_port_open
from ltrain_transforms.errors import NoCluster
from ltrain_transforms.recipe import Train

pytestmark = pytest.mark.nightly
Write = Callable[[list[dict[str, Any]]], Path]
FULL = Train(
    lora_rank=0, dtype="fp32", learning_rate=1e-3, drift_warning=1.0, drift_limit=2.0
)  # the rows have random log-probabilities
AUTH = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}


def start_node(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start a node with one CPU, which ends when it gets SIGTERM."""
    folder.mkdir()
    command = ["-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
    command += ["--object-store-memory=100000000", "--disable-usage-stats", *options]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *command],
            stdout=log,
            stderr=log,
            env=os.environ | AUTH | {"PYTHONWARNINGS": "ignore"},
        )


CPUS = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)
alive = [node for node in ray.nodes() if node["Alive"]]
print(json.dumps([len(alive), ray.available_resources().get("CPU", 0)]))
"""


def wait_for(address: str, nodes: int, cpus: int) -> None:
    """Wait until the cluster has these nodes and free CPUs."""
    until, state = time.monotonic() + 60, None
    while state != [nodes, cpus]:
        assert time.monotonic() < until, state
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", CPUS, address],
            capture_output=True,
            text=True,
            env=os.environ | AUTH,
        )
        state = json.loads(done.stdout.splitlines()[-1]) if done.stdout else done.stderr


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a cluster of two nodes with one CPU each, which asks for a token."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        # the path of a socket has at most 107 bytes
        short = Path(stack.enter_context(TemporaryDirectory(prefix="ltrain-test-")))
        head = (
            "--head",
            f"--port={port}",
            "--include-dashboard=false",
            f"--temp-dir={short / 't'}",
        )
        for options in (head, (f"--address={address}",)):
            node = start_node(short / options[0].strip("-")[:4], *options)
            stack.callback(node.wait)
            stack.callback(node.terminate)
            while not is_port_open(port):
                assert node.poll() is None, (short / "head" / "log").read_text()
                time.sleep(0.1)
        wait_for(address, 2, 2)
        for name, value in AUTH.items():
            patch.setenv(name, value)
        yield address


def learner_on(address: str | None, base: Path, directory: Path, ranks: int = 2) -> LearnerClient:
    train = FULL.model_copy(update={"ray_address": address})
    return LearnerClient(train, base, directory=directory, policy="p", ranks=ranks)


def rank_processes() -> list[psutil.Process]:
    """Return the ranks on the nodes that this process has started."""
    descendants = psutil.Process().children(recursive=True)
    return [each for each in descendants if each.name().startswith("ray::RankWorker")]


def test_ranks_on_two_nodes_train_as_on_one_machine(
    address: str, tiny: Path, tmp_path: Path, make_rows: Callable[..., Any], write: Write
) -> None:
    """The learner is killed afterwards: the cluster stays, with all its CPUs free."""
    samples = write(make_rows(10))
    reports = []
    for place in (None, address):
        with learner_on(place, tiny, tmp_path / f"logs-{bool(place)}") as learner:
            reports.append(learner.step(samples, OBJECTIVE, version=0))
            learner.export(tmp_path / f"v{bool(place)}")
            if place is None:
                continue
            ranks = rank_processes()
            assert len({each.ppid() for each in ranks}) == len(ranks) == 2
            service_of(learner).kill()  # not its guard
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("vFalse", "vTrue"))
    assert one.keys() == two.keys()
    assert all((one[name] == two[name]).all() for name in one)
    assert reports[0].metrics == reports[1].metrics
    wait_for(address, nodes=2, cpus=2)
    assert [path.name for path in (tmp_path / "logs-True").iterdir()] == ["learner.log"]


def test_more_ranks_than_the_cluster_has_cpus_are_refused(
    address: str, tiny: Path, tmp_path: Path
) -> None:
    refused = pytest.raises(BadRun, match=r"`ranks` is 3 .* has them for 2: 1 on .*, 1 on .*Set")
    with learner_on(address, tiny, tmp_path, ranks=3) as learner, refused:
        learner.wait(timeout=60)


def test_an_address_without_a_cluster_is_refused(tiny: Path, tmp_path: Path) -> None:
    refused = pytest.raises(NoCluster, match=r"No Ray cluster at 127\.0\.0\.1:1: .*train\.ray_addr")
    with learner_on("127.0.0.1:1", tiny, tmp_path) as learner, refused:
        learner.wait(timeout=60)  # Ray itself tries for minutes
