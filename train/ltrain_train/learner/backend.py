"""The seam between the learner's process and the library that trains.

A backend is a folder whose face has the functions of `Backend`; importing the face imports neither
torch nor the library. A further backend is such a folder and a line in `BACKENDS`.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from opentelemetry.trace import Tracer

from ltrain_instrument import settings
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.protocol import Job, Place, StepReport
from ltrain_train.learner.samples import Kind
from ltrain_train.policy import Reference

BACKENDS = {
    "verl": "ltrain_train.learner.verl_backend",
    "tinker": "ltrain_train.learner.tinker_backend",
}
"""The module of each backend by name."""
DEFAULT = "verl"


class Trainer(Protocol):
    """One policy in training. Each method answers the request of its name."""

    def step(
        self,
        samples: Path,
        objective: Objective,
        *,
        version: int,
        dataset: str,
        versions: Mapping[int, Reference],
    ) -> StepReport:
        """Make one update from the rows in `samples`, up to `steps_per_wave` optimizer steps.

        Rendered rows get log-probabilities of the version that answered each call: the learner's
        own `version`, or one of `versions`, by their weights.

        Raises:
            BadSamples: when the rows cannot be trained on; then no step has been made.
            PolicyDrift: when the server's log-probabilities are too far from the learner's; then no
                step has been made.
        """
        ...

    def log_probs(self, samples: Path, kind: Kind = "rl") -> list[list[float]]:
        """Return the log-probabilities of each row's response tokens under the current weights."""
        ...

    def save(self, directory: Path) -> None:
        """Write a checkpoint, with the record of `ltrain_train.learner.checkpoint`."""
        ...

    def load(self, directory: Path) -> None:
        """Load a checkpoint, from which training continues.

        Raises:
            BadCheckpoint: when the checkpoint does not fit this learner.
        """
        ...

    def share(self, *, dtype: str) -> dict[str, Any] | None:
        """Return a message (`SharedWeights`) about memory with the policy, adapter merged.

        vLLM on this machine opens it, until `unshare`. None: the weights cannot be shared.
        """
        ...

    def unshare(self) -> None:
        """Free the memory of `share`."""
        ...

    def export(self, directory: Path, *, dtype: str, shared: bool = False) -> None:
        """Write the policy, adapter merged, as a model directory for transformers and vLLM.

        With `shared` these are the weights that `share` rounded last.

        Raises:
            NotFinite: when a weight is not a finite number; then nothing is written.
        """
        ...

    def export_adapter(self, directory: Path) -> None:
        """Write the adapter as it was trained, in PEFT's layout.

        Raises:
            NotFinite: when a weight is not a finite number; then nothing is written.
            BadBase: when all weights are trained, so that there is no adapter.
        """
        ...

    def move(self, to: Place) -> None:
        """Move weights, gradients and optimizer into the memory of the GPU or of the host.

        After `host` the process uses no memory of the GPU beyond its libraries' own. No request but
        `move` comes until they are on the GPU again.
        """
        ...

    def select(self, policy: str, recipe: str, checkpoint: Path | None) -> None:
        """Train another policy with the same base from now on.

        Args:
            recipe: digest of its recipe.
            checkpoint: its checkpoint; None: it starts from the base, with a new adapter.

        Raises:
            BadCheckpoint: when the checkpoint does not fit this learner.
        """
        ...


class Backend(Protocol):
    """The module of a backend."""

    def environment(self, job: Job) -> dict[str, str]:
        """Return the variables of the learner's process, which are set before its Python starts.

        Raises:
            BadRun: when this machine cannot train the job.
        """
        ...

    def start(self, job: Job, tracer: Tracer) -> Trainer:
        """Load the model of a job, in the learner's process."""
        ...

    def describe_error(self, error: Exception, trainer: Trainer | None) -> str:
        """Return one line about an error of the library."""
        ...

    def stop(self) -> None:
        """End what `start` started outside this process."""
        ...


def backend_name(name: str = DEFAULT) -> str:
    """Return the name of the backend: that of LTRAIN_LEARNER_BACKEND, by default `name`."""
    return settings.LEARNER_BACKEND.read() or name


def find_backend(name: str = DEFAULT) -> Backend:
    """Return the backend of LTRAIN_LEARNER_BACKEND: a name in `BACKENDS`, or a module.

    Args:
        name: the backend if the variable is not set.
    """
    chosen = backend_name(name)
    return cast(Backend, import_module(BACKENDS.get(chosen, chosen)))
