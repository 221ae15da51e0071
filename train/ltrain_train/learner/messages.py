"""What the learner and its client say to each other: one JSON object a line, over two pipes.

A request is `{"do": name, ...arguments}`; the answer is `{"ok": result}` or
`{"error": sentence, "kind": class}`. Answers come in the order of the requests.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from ltrain_transforms.recipe import Train


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one learner process is started for."""

    base: Path
    """The model directory that training starts from."""
    train: Train
    policy: str
    """The policy's name, for spans."""
    recipe: str
    """The recipe's digest, for spans."""
    checkpoint: Path | None = None
    """Where to go on from."""
    scratch: Path | None = None
    """Holds Ray's files and goes with the process; None: where Ray keeps them."""
    home: Path | None = None
    """Holds the spool of spans; None: no spans are written."""
    seed: int = 0
    """Decides the adapter's first weights and which rows share an optimizer step."""
    ranks: int = 1
    """Data-parallel worker processes."""

    def encode(self) -> dict[str, Any]:
        fields = asdict(self) | {"train": self.train.model_dump()}
        return {name: str(v) if isinstance(v, Path) else v for name, v in fields.items()}

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> Self:
        paths = {
            name: Path(fields[name])
            for name in ("base", "checkpoint", "scratch", "home")
            if fields[name] is not None
        }
        return cls(**(fields | paths | {"train": Train.model_validate(fields["train"])}))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one update did: `steps_per_wave` optimizer steps over one samples file."""

    metrics: dict[str, float]
    """Means over the optimizer steps, by name: loss, grad_norm, kl, clip_fraction, …"""
    rows: int
    """Rows that were trained on."""
    tokens: int
    """Tokens of those rows, prompts included; `computed_tokens` of the metrics are those that went
    through the model, where rows that begin alike share their beginning."""
    trained_tokens: int
    """Tokens that the loss looked at."""
    steps: int
    """Optimizer steps of this update."""
    total_steps: int
    """Optimizer steps since the base, earlier runs from the same checkpoint included."""
    seconds: float
    dropped: dict[str, int] = field(default_factory=dict)
    """Rows that were left out, by reason."""
    stale: tuple[str, ...] = ()
    """The sample ids of those whose reason is `stale`."""


def encode_line(message: dict[str, Any]) -> bytes:
    """Give a message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
