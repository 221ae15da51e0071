"""The learners of a run's policies; one process trains the adapters of a base in turn."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ltrain_train.errors import BadCheckpoint, BadRun
from ltrain_train.learner import Job, Kind, LearnerClient, Objective, Place, StepReport
from ltrain_train.policy import (
    Policies,
    Reference,
    SharedWeights,
    find_reference,
    held_reference,
    read_adapter_config,
)
from ltrain_train.processes import Children, RunLock
from ltrain_train.runs import Plan

_logger = logging.getLogger("ltrain.loop")


@dataclass(slots=True)
class LearnerProcess:
    """A learner process, and the policy that it trains now."""

    client: LearnerClient
    trains: str


@dataclass(slots=True)
class PolicyLearner:
    """The learner of one policy, in a process that may train other policies too."""

    process: LearnerProcess
    policy: str
    recipe: str
    """Digest of the policy's recipe."""
    base: int
    """The version whose weights the process has loaded."""
    checkpoint: Path | None
    """The policy's last checkpoint; None: it starts from the base."""

    def step(
        self,
        samples: Path,
        objective: Objective,
        *,
        version: int,
        dataset: str = "",
        versions: Mapping[int, Reference] | None = None,
    ) -> StepReport:
        """Make one update, as `LearnerClient.step` does."""
        return self._client.step(
            samples, objective, version=version, dataset=dataset, versions=versions
        )

    def log_probs(self, samples: Path, kind: Kind = "rl") -> list[list[float]]:
        """Return the log-probabilities of each row's response tokens under the current weights."""
        return self._client.log_probs(samples, kind)

    def save(self, directory: Path) -> None:
        """Write a checkpoint, to which the policy's next turn returns."""
        self._client.save(directory)
        self.checkpoint = directory

    def move(self, to: Place) -> None:
        """Move the model of the process, as `LearnerClient.move` does."""
        self.process.client.move(to)

    def share(self) -> SharedWeights | None:
        """Round the policy into memory that vLLM can open, as `LearnerClient.share` does."""
        return self._client.share()

    def unshare(self) -> None:
        """Free that memory."""
        self._client.unshare()

    def export(self, directory: Path, *, shared: bool = False) -> None:
        """Write the policy as a model directory, adapter merged."""
        self._client.export(directory, shared=shared)

    def export_adapter(self, directory: Path) -> None:
        """Write the adapter as it was trained."""
        self._client.export_adapter(directory)

    @property
    def _client(self) -> LearnerClient:
        """The process, after it has taken the weights of this policy."""
        if self.process.trains != self.policy:
            self.process.client.select(self.policy, self.recipe, self.checkpoint)
            self.process.trains = self.policy
        return self.process.client


class Learners(ExitStack):
    """The learner processes of a run's policies; the `with` block starts and ends them."""

    def __init__(
        self, plans: Sequence[Plan], policies: Policies, versions: Mapping[str, int], lock: RunLock
    ) -> None:
        """Describe the learners.

        Args:
            versions: the version of each policy at the start.
            lock: the run's; the guards of the processes hold it until these have ended.

        Raises:
            BadRun: when a version is an adapter of another rank than the recipe trains.
        """
        super().__init__()
        self._plans, self._policies = plans, policies
        self._processes: list[LearnerProcess] = []
        self._by_policy: dict[str, PolicyLearner] = {}
        keys: list[Job] = []
        for plan in plans:
            base, client = make_learner(plan, policies, versions[plan.policy], lock)
            key = _sharing_key(client.job, policies, base)
            if key not in keys:
                keys.append(key)
                self._processes.append(LearnerProcess(client, plan.policy))
            process = self._processes[keys.index(key)]
            checkpoint, recipe = client.job.checkpoint, client.job.recipe
            self._by_policy[plan.policy] = PolicyLearner(
                process, plan.policy, recipe, base, checkpoint
            )
        if len(self._processes) > 1:
            for process in self._processes:
                process.client.log = process.client.log.with_name(f"learner-{process.trains}.log")

    def of(self, policy: str) -> PolicyLearner:
        """Return the learner of a policy."""
        return self._by_policy[policy]

    def ready(self) -> bool:
        """Return whether every model is loaded, without waiting.

        Raises:
            LtrainError: when a model cannot be loaded.
        """
        return all([process.client.ready() for process in self._processes])

    def wait(self) -> None:
        """Wait until every model is loaded.

        Raises:
            LtrainError: when a model cannot be loaded.
        """
        for process in self._processes:
            process.client.wait()

    def leave_gpu(self) -> None:
        """Wait until every model is loaded, and move all into the host's memory."""
        self.wait()
        for process in self._processes:
            process.client.move("host")

    def __enter__(self) -> Self:
        for plan in self._plans:
            self.enter_context(held_reference(self._policies, plan.train))
        for process in self._processes:
            self.enter_context(process.client)
        return self


def _sharing_key(job: Job, policies: Policies, base: int) -> Job:
    """Return what is equal for policies that one process can train in turn.

    That are adapters of equal weights, in the same shape and with the same reference. The process
    of all weights, or of an adapter without a checkpoint, is the policy's own.
    """
    if not job.lora_rank or job.adapter is not None:
        return job
    digest = policies.read_version(job.policy, base).base_digests()["model"]
    own: dict[str, Any] = {
        **{"policy": "", "recipe": ""},
        **dict.fromkeys(("checkpoint", "scratch", "journal")),
    }
    return replace(job, base=Path(digest), **own)


def make_learner(
    plan: Plan, policies: Policies, version: int, lock: RunLock
) -> tuple[int, LearnerClient]:
    """Return a learner that continues from a version, and the version whose weights it loads.

    The checkpoint of the version has its weights as they were before they were rounded for the
    server, and the optimizer. Without one that fits and is undamaged, the learner starts from what
    is served.

    Raises:
        BadModel: when the weights that it would load are damaged.
        BadRun: when the version is an adapter of another rank than the recipe trains.
    """
    found = policies.find_checkpoint(plan.policy, version)
    manifest = policies.read_version(plan.policy, version)
    base, checkpoint = found or (manifest.weights_version, None)
    learner = _new_learner(plan, policies, base, lock, checkpoint=checkpoint)
    try:
        learner.check_fit()
        if found is None and manifest.parent is not None:
            raise BadCheckpoint(f"v{version} of '{plan.policy}' has no checkpoint.")
    except BadCheckpoint as error:
        served = "adapter" if manifest.artifact == "adapter" else "rounded weights"
        _logger.warning(
            "ltrain: %s Training starts from the %s of v%d, with a new optimizer.",
            error,
            served,
            version,
        )
        policies.verify(plan.policy, version)
        adapter = require_rank(plan, policies, version) if served == "adapter" else None
        base = manifest.weights_version
        return base, _new_learner(plan, policies, base, lock, adapter=adapter)
    policies.verify(plan.policy, base)
    return base, learner


def require_rank(plan: Plan, policies: Policies, version: int) -> Path:
    """Return the adapter of a version, if it has the rank that the recipe trains."""
    adapter = policies.path(plan.policy, version)
    rank = read_adapter_config(adapter).r
    if rank != plan.train.lora_rank:
        raise BadRun(
            f"v{version} of '{plan.policy}' is an adapter of rank {rank}, and train.lora_rank is "
            f"{plan.train.lora_rank}. Set train.lora_rank = {rank}, or train from full weights: "
            f"`ltrain policy export {plan.policy}@{version} FOLDER --merged`, then `ltrain policy "
            f"add {plan.policy} FOLDER` and `ltrain policy use`."
        )
    return adapter


def _new_learner(
    plan: Plan,
    policies: Policies,
    base: int,
    lock: RunLock,
    *,
    checkpoint: Path | None = None,
    adapter: Path | None = None,
) -> LearnerClient:
    return LearnerClient(
        plan.train,
        policies.path(plan.policy, base),
        directory=plan.home / "logs",
        policy=plan.policy,
        recipe=plan.recipe.digest,
        home=plan.home,
        checkpoint=checkpoint,
        adapter=adapter,
        reference=find_reference(policies, plan.train, plan.policy, base),
        seed=plan.recipe.rollout.seed if plan.recipe.rollout else 0,
        ranks=plan.train.ranks,
        children=Children(lock.descriptors),
    )
