"""Where the ranks of a learner run: on its own Ray cluster, or on the machines of another one.

On another cluster, `Placement.reserve` checks before anything is loaded that

* it has a GPU, or on CPUs a CPU, for each rank;
* every rank has this process's versions of ltrain, torch and verl;
* every rank sees the files of the run, and this process sees what a rank writes there.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ltrain_train.errors import BadRun
from ltrain_train.learner.protocol import Job
from ltrain_train.learner.verl_backend.device import Device

untyped_ray: Any = ray
PACKAGES = ("ltrain", "torch", "verl")
"""Packages whose versions must be the same on all machines. Ray checks itself and Python."""
RESERVE_TIMEOUT = 30.0
"""Seconds to wait until the cluster has free what the ranks need."""
PROBE_TIMEOUT = 120.0
"""Seconds for each rank's checks, with the start of a process on its machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the ranks run, and where they connect."""

    group: Any = None
    """Ray's placement group, with one bundle for each rank; None: verl makes one."""
    address: str | None = None
    """Address of the first rank; None: that of its node."""
    port: int | None = None
    """Port of the first rank; None: a free one of its node."""

    @classmethod
    def reserve(cls, job: Job, device: Device) -> Self:
        """Return a placement on the cluster that this process has joined.

        Ray removes the reservation when this process ends.
        """
        address = untyped_ray.get_runtime_context().gcs_address
        check_size(untyped_ray.nodes(), job.ranks, address, device)
        bundle = {"CPU": 1, device.resource: 1}
        # GPUs of one machine are faster together; CPUs of one machine share its memory's bandwidth
        strategy = "PACK" if device.one_rank_each else "SPREAD"
        group: Any = placement_group([bundle] * job.ranks, strategy=strategy)
        if not group.wait(RESERVE_TIMEOUT):
            remove_placement_group(group)
            free = untyped_ray.available_resources().get(device.resource, 0)
            raise BadRun(
                f"The Ray cluster at {address} is busy: `ranks` is {job.ranks} in [train], "
                f"and {free:g} of its {device.resource}s are free. Wait for its other work, or "
                "lower `ranks`."
            )
        _check_nodes(group, job, address)
        return cls(group=group)


def check_size(nodes: Sequence[dict[str, Any]], ranks: int, address: str, device: Device) -> None:
    """Check that a cluster has enough CPUs and GPUs for the ranks, whether they are free or not."""
    slots = {_name(node): _slots(node["Resources"], device) for node in nodes if node["Alive"]}
    count = sum(slots.values())
    if count >= ranks:
        return
    by_node = ", ".join(f"{number} on {name}" for name, number in slots.items())
    also = " and a CPU" if device.one_rank_each else ""
    raise BadRun(
        f"`ranks` is {ranks} in [train] and each rank needs a {device.resource}{also}, but the "
        f"Ray cluster at {address} has them for {count}: {by_node}. Set `ranks` to "
        f"{max(1, count)}, or add a machine with `ray start --address={address}`."
    )


def _slots(resources: dict[str, float], device: Device) -> int:
    return int(min(resources.get("CPU", 0), resources.get(device.resource, 0)))


def _name(node: dict[str, Any]) -> str:
    # several nodes may be on one machine
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:6]})"


def _check_nodes(group: Any, job: Job, address: str) -> None:
    """Run `_probe` where each rank will run."""
    shared = job.scratch
    if shared is None:
        raise BadRun("A learner on a Ray cluster needs a folder that all machines share.")
    content, versions = token_hex(16), {name: version(name) for name in PACKAGES}
    (shared / "probe").write_text(content)
    models: list[Path | None] = [job.base, job.checkpoint, job.adapter]
    if job.reference is not None:
        models += [job.reference.weights, job.reference.adapter]
    read = [str(path) for path in models if path is not None]
    # by value: a node without ltrain answers too
    untyped_ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        probes = [
            ray.remote(_probe)
            .options(
                max_retries=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=rank
                ),
            )
            .remote(str(shared), rank, content, list(PACKAGES), read)
            for rank in range(job.ranks)
        ]
    finally:
        untyped_ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    try:
        results = ray.get(probes, timeout=PROBE_TIMEOUT)
    except ray.exceptions.GetTimeoutError as error:
        raise BadRun(
            f"The Ray cluster at {address} has not started a process for each rank after "
            f"{PROBE_TIMEOUT:.0f} s. Ray's logs on its nodes may have the reason."
        ) from error
    for rank, probe in enumerate(results):
        written = _is_written(shared / f"probe-{rank}", content)
        judge_probe(probe, versions, shared, is_written=written)


def _is_written(file: Path, content: str) -> bool:
    try:
        return file.read_text() == content
    except OSError:
        return False


def _probe(shared: str, rank: int, content: str, packages: list[str], read: list[str]) -> Any:
    """Return what a rank finds on its node. It runs there, also if ltrain is not installed."""
    import socket
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path

    import ray

    untyped_ray: Any = ray
    address = untyped_ray.util.get_node_ip_address()
    versions, error = {}, ""
    for name in packages:
        try:
            versions[name] = version(name) or "none"
        except PackageNotFoundError:
            versions[name] = "none"
    try:
        if (Path(shared) / "probe").read_text() != content:
            error = "its content is another"
        (Path(shared) / f"probe-{rank}").write_text(content)
    except OSError as raised:
        error = raised.strerror or str(raised)
    missing = [path for path in read if not Path(path).is_dir()]
    node = f"{socket.gethostname()} ({address})"
    return {"node": node, "versions": versions, "error": error, "missing": missing}


def judge_probe(probe: Any, versions: dict[str, str], shared: Path, *, is_written: bool) -> None:
    """Check what a rank has found."""
    node = probe["node"]
    found = {name: number for name, number in probe["versions"].items() if number != versions[name]}
    if found:
        raise BadRun(
            f"The node {node} has {_list(found)}, and this machine has "
            f"{_list({name: versions[name] for name in found})}. Install the same versions in the "
            "environment that `ray start` ran in, and start Ray there again."
        )
    if probe["error"] or not is_written:
        raise BadRun(
            f"The node {node} does not share the folder {shared.parent}: "
            f"{probe['error'] or 'what it writes there is not seen here'}. The ranks exchange "
            "weights and checkpoints through it: put LTRAIN_HOME on a folder that every machine "
            "mounts at the same path, writable for the user that runs Ray."
        )
    if probe["missing"]:
        raise BadRun(
            f"The node {node} has no folder {probe['missing'][0]}. Put it on a folder that every "
            "machine mounts at the same path."
        )


def _list(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())
