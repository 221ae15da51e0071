"""Who a span belongs to: run, task, rollout and attempt, in attributes and in the environment.

A rollout's id is a hash of what it is, so asking for the same rollout twice is asking once.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Literal, Self, cast

from ltrain_instrument import attributes

Mode = Literal["train", "val", "prod"]
"""train and val are ours to drive; prod is traffic that was there anyway."""


def rollout_id(run: str, mode: Mode, wave: int, task: str, sample: int) -> str:
    """Name the `sample`-th execution of `task` in `wave`: 32 hexadecimal digits."""
    parts = "\x1f".join((run, mode, str(wave), task, str(sample)))
    return sha256(parts.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What every span of one attempt carries; a field that is None is not carried."""

    run: str | None = None
    task: str | None = None
    domain: str | None = None
    wave: int | None = None
    sample: int | None = None
    rollout: str | None = None
    attempt: int | None = None
    mode: Mode | None = None

    def attributes(self) -> dict[str, str | int]:
        """Give the span attributes."""
        values = ((_ATTRIBUTES[f.name], getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in values if value is not None}

    def environ(self) -> dict[str, str]:
        """Give the variables that hand this identity to a child process."""
        values = ((_VARIABLES[f.name], getattr(self, f.name)) for f in fields(self))
        return {name: str(value) for name, value in values if value is not None}

    @classmethod
    def from_attributes(cls, found: Mapping[str, object]) -> Self:
        """Read what `attributes()` gave, as span attributes or as baggage, where all is text."""
        texts = {
            _VARIABLES[field]: str(found[name])
            for field, name in _ATTRIBUTES.items()
            if name in found
        }
        return cls.from_environ(texts)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read what `environ()` wrote; an integer that is none is left out."""
        found = {field: environ[name] for field, name in _VARIABLES.items() if environ.get(name)}
        whole = {field: int(found[field]) for field in _INTEGERS if found.get(field, "").isdigit()}
        text = {field: value for field, value in found.items() if field not in _INTEGERS}
        mode = text.pop("mode", None)
        known = cast(Mode, mode) if mode in ("train", "val", "prod") else None
        return cls(**text, **whole, mode=known)  # type: ignore[arg-type]


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
