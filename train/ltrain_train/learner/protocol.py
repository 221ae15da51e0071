"""Messages between the learner and its client: one JSON object a line, over two pipes.

A request is `{"do": name, ...arguments}`; its answer is `{"ok": result}` or
`{"error": message, "kind": class}`. Answers come in the order of the requests.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Required, Self, TypedDict

from pydantic import TypeAdapter

from ltrain_train.policy import Reference, resolve_dtype
from ltrain_transforms.recipe import Tinker, Train, Verl

Place = Literal["gpu", "host"]
"""The memory that holds the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The settings of one learner process; each `step` request has its own objective."""

    base: Path
    """The directory of the model at the start of training."""
    lora_rank: int
    """Rank of the adapter; 0: all weights are trained."""
    lora_alpha: int
    """Scale of the adapter."""
    dtype: str
    """`bf16` or `fp32`: of exported weights, and of the computation where the processor is fast in
    it."""
    tokens_per_micro_batch: int
    """Most tokens that go through the model at once."""
    verl: Verl
    """verl's further options, of which the process has those of the optimizer and the engine."""
    policy: str
    """The policy's name, for spans."""
    tinker: Tinker | None = None
    """The server that trains in place of this machine."""
    journal: Path | None = None
    """File in which a backend notes what it holds at a server, for the next process."""
    recipe: str = ""
    """The recipe's digest, for spans."""
    checkpoint: Path | None = None
    """Checkpoint from which training continues."""
    adapter: Path | None = None
    """Adapter to start from, without a checkpoint; None: a new one."""
    reference: Reference | None = None
    """The model of the KL divergence; None: the trained model without its adapter."""
    critic: bool = False
    """Whether a critic is trained beside the policy."""
    scratch: Path | None = None
    """Folder of the heartbeat and of the files of Ray, removed with the process; on a cluster all
    nodes share it. None: Ray's default, without a heartbeat."""
    home: Path | None = None
    """Folder with the spool of spans; None: no spans are written."""
    seed: int = 0
    """Seed of the adapter's first weights and of the split of rows into optimizer steps."""
    ranks: int = 1
    """Worker processes."""
    sequence_ranks: int = 1
    """Ranks that compute each row together."""
    ray_address: str | None = None
    """The Ray cluster that the ranks run on; None: they run on this machine."""

    @classmethod
    def from_train(cls, train: Train, **settings: Any) -> Self:
        """Return the job of a recipe's [train] and the other settings, with `dtype` resolved."""
        return cls(
            lora_rank=train.lora_rank,
            lora_alpha=train.lora_alpha or 2 * train.lora_rank,
            dtype=resolve_dtype(train).dtype,
            tokens_per_micro_batch=train.micro_batch_tokens,
            verl=train.verl,
            tinker=train.tinker if train.backend == "tinker" else None,
            critic=train.critic is not None,
            sequence_ranks=train.sequence_ranks,
            ray_address=train.ray_address,
            **settings,
        )

    @property
    def backend(self) -> str:
        """The name of the backend that the recipe chooses."""
        return "verl" if self.tinker is None else "tinker"

    @property
    def parts(self) -> int:
        """The parts of a batch that are computed at the same time."""
        return self.ranks // self.sequence_ranks

    @property
    def is_alone(self) -> bool:
        """Whether one process of this machine has all weights, and can share memory (Linux)."""
        return self.ranks == 1 and self.ray_address is None and sys.platform == "linux"

    def encode(self) -> dict[str, Any]:
        """Return the job as the arguments of a `start` request."""
        encoded: dict[str, Any] = JOBS.dump_python(self, mode="json")
        return encoded


class JobSettings(TypedDict, total=False):
    """The fields of a job that are not in [train], apart from its folders."""

    policy: Required[str]
    recipe: str
    home: Path | None
    checkpoint: Path | None
    adapter: Path | None
    reference: Reference | None
    seed: int
    ranks: int


JOBS = TypeAdapter(Job)
decode_job = JOBS.validate_python
"""Return the job of a `start` request's arguments."""


VERSIONS = TypeAdapter(dict[int, Reference])
"""The weights of versions, an argument of a `step` request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The result of one update: up to `steps_per_wave` optimizer steps over one samples file."""

    metrics: dict[str, float]
    """Means over these optimizer steps, by name: loss, grad_norm, kl, clip_fraction, …; of
    `computed_tokens` the sum over the steps and ranks. Without a step that counts: only those that
    are measured before the steps, such as the drift and the entropy."""
    rows: int
    """Rows of the update, those of undone steps included."""
    tokens: int
    """Tokens of those rows, prompts included. The metric `computed_tokens` counts a common prefix
    of rows once, as the model computes it."""
    trained_tokens: int
    """Tokens in the loss."""
    steps: int
    """Optimizer steps of this update that changed the weights."""
    total_steps: int
    """Optimizer steps since the base model, those before the loaded checkpoint included."""
    seconds: float
    undone: int = 0
    """Optimizer steps that were undone because a number was not finite; not in `steps`."""
    warnings: tuple[str, ...] = ()
    """Warnings to the user about this update, one sentence each."""
