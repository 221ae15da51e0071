"""A training run at the server, one adapter with its optimizer, and its state in a checkpoint.

Each request is in the journal before it is sent. The SDK numbers the requests of a run, so that a
request that it repeats has its effect once.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from tinker import types

from ltrain_train.errors import BadCheckpoint
from ltrain_train.learner.tinker_backend.aggregation import Aggregation
from ltrain_train.learner.tinker_backend.journal import Journal
from ltrain_train.learner.tinker_backend.server import Server
from ltrain_transforms.file_digests import read_sealed, seal

STATE_FILE = "tinker.json"


class TrainingRun:
    """The client of a training run."""

    def __init__(self, server: Server, journal: Journal, client: Any) -> None:
        self._server, self._journal, self._client = server, journal, client
        self.id = str(client.model_id)
        journal.write("created", run=self.id, server=server.name)

    @classmethod
    def create(cls, server: Server, journal: Journal, rank: int, seed: int) -> "TrainingRun":
        """Create a run with a new adapter."""
        journal.write("create", rank=rank)
        client = server.wait(
            "create a training run",
            lambda: server.service.create_lora_training_client(server.model, rank=rank, seed=seed),
        )
        return cls(server, journal, client)

    @classmethod
    def restore(cls, server: Server, journal: Journal, path: str) -> "TrainingRun":
        """Create a run with the adapter and the optimizer of a saved one."""
        journal.write("restore", path=path)
        client = server.wait(
            f"load {path}",
            lambda: server.service.create_training_client_from_state_with_optimizer(path),
        )
        return cls(server, journal, client)

    def forward(self, rows: Sequence[types.Datum]) -> Sequence[Any]:
        """Return the outputs of each row under the current weights."""
        result = self._server.wait(
            "compute log-probabilities", lambda: self._client.forward(list(rows), "cross_entropy")
        )
        outputs: Sequence[Any] = result.loss_fn_outputs
        return outputs

    def forward_backward(
        self, rows: Sequence[types.Datum], loss: str, options: dict[str, float] | None = None
    ) -> None:
        """Add the gradient of a loss."""
        self._journal.write("forward_backward", run=self.id, rows=len(rows), loss=loss)
        self._server.wait(
            "compute the gradient",
            lambda: self._client.forward_backward(list(rows), loss, options or None),
        )

    def optim_step(self, parameters: types.AdamParams) -> dict[str, float]:
        """Make an optimizer step with the added gradients, and return its metrics."""
        self._journal.write("optim_step", run=self.id, rate=parameters.learning_rate)
        result = self._server.wait(
            "make an optimizer step", lambda: self._client.optim_step(parameters)
        )
        self._journal.write("optim_step_made", run=self.id)
        return dict(result.metrics or {})

    def save(self, name: str) -> str:
        """Save the adapter and its optimizer, and return the `tinker://` path."""
        self._journal.write("save", run=self.id, name=name)
        path = self._server.wait("save the weights", lambda: self._client.save_state(name)).path
        self._journal.write("saved", run=self.id, path=path)
        return str(path)

    def save_sampler(self, name: str) -> str:
        """Save the adapter for sampling, and return the `tinker://` path."""
        self._journal.write("save_sampler", run=self.id, name=name)
        saved = self._server.wait(
            "save the adapter", lambda: self._client.save_weights_for_sampler(name)
        )
        self._journal.write("saved_sampler", run=self.id, path=saved.path)
        return str(saved.path)

    def unload(self) -> None:
        """Release its place at the server."""
        self._server.unload(self.id)
        self._journal.write("unload", run=self.id)


@dataclass(frozen=True, slots=True)
class ServerState:
    """The content of `tinker.json`."""

    server: str
    base_model: str
    path: str
    """The `tinker://` path of the adapter and its optimizer."""
    aggregation: Aggregation


_STATE = TypeAdapter(ServerState)


def write_state(directory: Path, state: ServerState) -> None:
    """Write the state into a checkpoint's folder."""
    (directory / STATE_FILE).write_text(seal(asdict(state)))


def read_state(directory: Path, server: str, base_model: str) -> ServerState:
    """Return the state in a checkpoint's folder, which is of a server and its model.

    Raises:
        BadCheckpoint: when it cannot be read, or is of another server or model.
    """
    try:
        state = _STATE.validate_python(read_sealed(directory / STATE_FILE))
    except (OSError, ValueError) as error:
        raise BadCheckpoint(
            f"The checkpoint {directory} is not of the backend tinker: its {STATE_FILE} cannot be "
            f"read ({str(error).splitlines()[0]}). Continue with the backend that wrote it, or "
            "start a new policy."
        ) from error
    for name, expected in (("server", server), ("base_model", base_model)):
        if (value := getattr(state, name)) != expected:
            raise BadCheckpoint(
                f"The checkpoint {directory} is at the {name} {value}, and this run uses "
                f"{expected}. Correct [train.tinker], or start a new policy."
            )
    return state
