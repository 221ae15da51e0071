"""What a cluster must have for the ranks of a learner, and what its nodes must see."""

from pathlib import Path
from typing import Any

import pytest

from ltrain_train.errors import BadRun
from ltrain_train.learner.protocol import Job
from ltrain_train.learner.verl_backend.backend import find_placement
from ltrain_train.learner.verl_backend.device import CPU, CUDA
from ltrain_train.learner.verl_backend.placement import check_size, judge_probe
from ltrain_transforms.recipe import Train

ADDRESS = "10.0.0.1:6379"
SHARED = Path("/shared/logs/learner-1")
VERSIONS = {"ltrain": "0.1.0", "torch": "2.13.0", "verl": "0.9.1"}


def node(name: str, *, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {
        "NodeID": f"{name}0123456789",
        "NodeManagerHostname": name,
        "NodeManagerAddress": "10.0.0.1",
        "Alive": alive,
        "Resources": resources,
    }


@pytest.mark.parametrize("platform", ["cpu", ""])
def test_one_rank_on_this_machine_needs_no_ray(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_PLATFORM", platform)
    job = Job.from_train(Train(dtype="fp32"), base=tmp_path, policy="p", recipe="")
    assert find_placement(job) is None


def test_each_rank_needs_a_gpu_and_a_cpu_of_a_living_node() -> None:
    nodes = [node("one", CPU=8, GPU=2), node("two", CPU=1, GPU=4), node("three", CPU=64)]
    check_size([*nodes, node("dead", alive=False, CPU=8, GPU=8)], 3, ADDRESS, CUDA)
    check_size(nodes, 73, ADDRESS, CPU)
    with pytest.raises(
        BadRun,
        match=r"`ranks` is 4 .* needs a GPU and a CPU, but the Ray cluster at 10\.0\.0\.1:6379 has "
        r"them for 3: 2 on one \(10\.0\.0\.1, one012\), 1 on two .*, 0 on three .*\. Set `ranks` "
        r"to 3, or add a machine with `ray start --address=10\.0\.0\.1:6379`",
    ):
        check_size(nodes, 4, ADDRESS, CUDA)


@pytest.mark.parametrize(
    ("found", "is_written", "message"),
    [
        (
            {"versions": VERSIONS | {"ltrain": "none"}},
            True,
            "two has ltrain none, and this machine",
        ),
        ({"error": "No such file"}, True, "two does not share the folder /shared/logs: No such"),
        ({}, False, "two does not share the folder /shared/logs: what it writes there is not"),
        ({"missing": ["/models/base"]}, True, "two has no folder /models/base"),
    ],
)
def test_a_node_that_cannot_work_is_named(
    found: dict[str, Any], is_written: bool, message: str
) -> None:
    probe = {"node": "two", "versions": VERSIONS, "error": "", "missing": []}
    judge_probe(probe, VERSIONS, SHARED, is_written=True)
    with pytest.raises(BadRun, match=f"The node {message}"):
        judge_probe(probe | found, VERSIONS, SHARED, is_written=is_written)
