"""The run, task, rollout and attempt of a span, as attributes and as environment variables.

The id of a rollout is a hash of its identity, so the same rollout always has the same id.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Literal, Self, cast, get_args

from ltrain_instrument import attributes

TrainableMode = Literal["train", "val", "prod"]
"""The modes that a policy may be trained on, `val` only if it is named."""
Mode = Literal[TrainableMode, "test", "shadow"]
"""ltrain runs train, val and test itself; prod is traffic that exists anyway; shadow is an answer
of a candidate to a call of prod, which nobody saw."""
SourceMode = Literal[TrainableMode, "all"]
"""The mode of the rollouts that a command reads; `all` restricts nothing."""
HELD_OUT_MODES: tuple[Mode, ...] = ("val", "test", "shadow")
"""The modes of calls that measure a policy."""


def rollout_id(run: str, mode: Mode, wave: int, task: str, sample: int) -> str:
    """Return the id of the `sample`-th execution of `task` in `wave`: 32 hexadecimal digits."""
    parts = "\x1f".join((run, mode, str(wave), task, str(sample)))
    return sha256(parts.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity that every span of one attempt carries; fields that are None are left out."""

    run: str | None = None
    task: str | None = None
    domain: str | None = None
    wave: int | None = None
    sample: int | None = None
    rollout: str | None = None
    attempt: int | None = None
    mode: Mode | None = None

    def attributes(self) -> dict[str, str | int]:
        """Return the span attributes."""
        values = ((_ATTRIBUTES[f.name], getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in values if value is not None}

    def environ(self) -> dict[str, str]:
        """Return the variables that pass this identity to a child process."""
        values = ((_VARIABLES[f.name], getattr(self, f.name)) for f in fields(self))
        return {name: str(value) for name, value in values if value is not None}

    @classmethod
    def from_attributes(cls, values: Mapping[str, object]) -> Self:
        """Parse the result of `attributes()`, from span attributes or from baggage, where values
        are text.
        """
        texts = {
            _VARIABLES[field]: str(values[name])
            for field, name in _ATTRIBUTES.items()
            if name in values
        }
        return cls.from_environ(texts)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Parse the result of `environ()`; a variable that is not a valid integer is left out."""
        texts = {field: environ[name] for field, name in _VARIABLES.items() if environ.get(name)}
        integers = {
            field: int(texts[field]) for field in _INTEGERS if texts.get(field, "").isdigit()
        }
        strings = {field: value for field, value in texts.items() if field not in _INTEGERS}
        mode = strings.pop("mode", None)
        known = cast(Mode, mode) if mode in get_args(Mode) else None
        return cls(**strings, **integers, mode=known)  # type: ignore[arg-type]


_ATTRIBUTES = {
    "run": attributes.RUN_ID,
    "task": attributes.TASK_ID,
    "domain": attributes.DOMAIN,
    "wave": attributes.WAVE,
    "sample": attributes.SAMPLE_INDEX,
    "rollout": attributes.ROLLOUT_ID,
    "attempt": attributes.ATTEMPT_ID,
    "mode": attributes.MODE,
}

_VARIABLES = {
    "run": "LTRAIN_RUN_ID",
    "task": "LTRAIN_TASK_ID",
    "domain": "LTRAIN_DOMAIN",
    "wave": "LTRAIN_WAVE",
    "sample": "LTRAIN_SAMPLE_INDEX",
    "rollout": "LTRAIN_ROLLOUT_ID",
    "attempt": "LTRAIN_ATTEMPT_ID",
    "mode": "LTRAIN_MODE",
}

_INTEGERS = ("wave", "sample", "attempt")

VARIABLES = tuple(_VARIABLES.values())
"""The environment variables that may hold an identity."""
AGENT_HEADER = "x-ltrain-agent"
"""The header in which a model call names its agent."""
ENVIRONMENT_VARIABLE = "LTRAIN_ENVIRONMENT"
"""Has the recipe's environment and its options for the agent's processes, as JSON."""
