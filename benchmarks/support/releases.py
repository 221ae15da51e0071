"""Releases of a learner's updates: the seconds until a version is served and those that calls wait.

A real learner and a gateway with a real vLLM take turns: after each update the weights reach vLLM
as files, then from the learner's memory.
"""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.learner import write_samples
from benchmarks.step import NO_DRIFT_LIMIT
from opentelemetry.sdk.trace import TracerProvider

from ltrain_train.gateway import GatewayClient
from ltrain_train.learner import LearnerClient, Objective
from ltrain_train.policy import Policies, SharedWeights
from ltrain_train.runs import Phases
from ltrain_train.store import home_secret
from ltrain_train.updates import LearnerProcess, PolicyLearner, Updater
from ltrain_transforms.recipe import Recipe, Train

WAYS = {"from files": "files", "from memory": "memory"}
"""The value of `serve.weights` of each way."""
RATE = 1e-4
"""Learning rate of the updates: it changes weights by more than bf16 rounds."""
ROWS, TOKENS = 4, 64
"""The rows of an update, and the tokens of each prompt and response."""


@dataclass(frozen=True, slots=True)
class Release:
    """One release of a version."""

    way: str
    saved: float
    """Seconds from the end of the update until the checkpoint is saved."""
    served: float
    """Seconds from then until the version is current."""
    waited: float
    """Seconds for which calls waited."""


class TimedGateway(GatewayClient):
    """A client that keeps the seconds for which calls waited for the last load."""

    waited = 0.0

    def load(
        self,
        policy: str,
        version: int,
        *,
        current: bool = True,
        shared: SharedWeights | None = None,
    ) -> float:
        self.waited = super().load(policy, version, current=current, shared=shared)
        return self.waited


class TimedLearner(PolicyLearner):
    """A learner that keeps the time at which it had saved a checkpoint."""

    saved = 0.0

    def save(self, directory: Path) -> None:
        super().save(directory)
        self.saved = time.monotonic()


def releases(
    url: str, home: Path, policy: str, *, rounds: int, lora_rank: int = 0
) -> Iterator[Release]:
    """Yield the releases of updates of a policy that the gateway at `url` serves."""
    policies = Policies(home)
    base = policies.current(policy)
    model = policies.path(policy, base)
    samples, checkpoints = home / "samples.parquet", home / "runs" / "bench" / "checkpoints"
    write_samples(samples, ROWS, prompt=TOKENS, response=TOKENS, vocab_size=500)
    limits = {"drift_warning": NO_DRIFT_LIMIT, "drift_limit": NO_DRIFT_LIMIT}
    settings = {"lora_rank": lora_rank, "learning_rate": RATE, **limits}
    train = Train.model_validate(settings)
    client, provider = TimedGateway(url, home_secret(home)), TracerProvider()
    with LearnerClient(train, model, directory=home, policy=policy) as learner:
        process = LearnerProcess(learner, policy)
        for _ in range(rounds):
            for way, weights in WAYS.items():
                version = policies.current(policy)
                trained = TimedLearner(process, policy, "", base, None)
                recipe = _recipe(policy, settings, weights)
                updater = Updater(recipe, policies, trained, client, provider, Phases())
                learner.step(samples, Objective.from_train(train), version=version)
                began = time.monotonic()
                updater.release("bench", version, (), checkpoints, as_adapter=False)
                saved, served = trained.saved - began, time.monotonic() - trained.saved
                yield Release(way, saved, served, client.waited)
                shutil.rmtree(checkpoints)
    client.close()


def describe(measured: list[Release]) -> Iterator[str]:
    """Yield a line for each way: the medians, without the first release of each."""
    for way in WAYS:
        _, *later = [each for each in measured if each.way == way]
        total = median(each.saved + each.served for each in later)
        served, waited = (median(getattr(each, x) for each in later) for x in ("served", "waited"))
        yield (
            f"{way}: served {total:.2f} s after the update and {served:.2f} s after its "
            f"checkpoint, calls waited {waited:.3f} s"
        )


def _recipe(policy: str, train: dict[str, float], weights: str) -> Recipe:
    return Recipe.model_validate(
        {
            "policy": [{"name": policy}],
            "reward": [{"name": "reward", "evaluation": "reward"}],
            "train": train,
            "serve": {"weights": weights},
        }
    )
