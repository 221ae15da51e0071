"""`deployments.jsonl`: the candidates of a policy, each of which answers a share of production.

* A line is a version that entered a stage; the last line is the state. A line is written whole.
* A policy has at most one version on trial. Its stage changes along `NEXT` only.
* `ltrain_train` writes the file; docs/deployment.md describes it.
"""

import secrets
import time
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from ltrain_instrument.files import write_file
from ltrain_transforms.errors import BadDeployment, BadPolicyFile

DEPLOYMENTS = "deployments.jsonl"
FREEZE = "frozen.json"
"""The file of a policy whose current version stays."""


class Stage(StrEnum):
    """The stage of a version on its way to the users."""

    CANDIDATE = "candidate"
    """It is examined before it answers users."""
    SHADOW = "shadow"
    """It answers a share of the conversations of production, too, and nobody sees its answers."""
    CANARY = "canary"
    """It answers a share of the conversations of production."""
    WATCHED = "watched"
    """It is current; the version before it still answers a share, for comparison."""
    CURRENT = "current"
    """It answers all calls."""
    RETIRED = "retired"
    """It was taken back, and answers no call of production any more."""

    @property
    def is_served(self) -> bool:
        """Whether the version is the current one."""
        return self in (Stage.WATCHED, Stage.CURRENT)

    @property
    def is_trial(self) -> bool:
        """Whether the version answers a share beside the current one, which a person may change."""
        return self in (Stage.SHADOW, Stage.CANARY)


NEXT = {
    Stage.CANDIDATE: (Stage.SHADOW, Stage.CANARY, Stage.CURRENT, Stage.RETIRED),
    Stage.SHADOW: (Stage.SHADOW, Stage.CANARY, Stage.CURRENT, Stage.RETIRED),
    Stage.CANARY: (Stage.CANARY, Stage.WATCHED, Stage.CURRENT, Stage.RETIRED),
    Stage.WATCHED: (Stage.CURRENT, Stage.RETIRED),
    Stage.CURRENT: (Stage.RETIRED,),
    Stage.RETIRED: (),
}
"""The stages that follow a stage; one that follows itself has another share."""


class Arm(StrEnum):
    """The side of a trial to which a conversation is assigned."""

    CANDIDATE = "candidate"
    CURRENT = "current"


class Freeze(BaseModel):
    """The contents of `frozen.json`."""

    model_config = ConfigDict(frozen=True)

    at: FiniteFloat
    """Unix seconds."""
    by: str
    reason: str = ""


class Deployment(BaseModel):
    """A line of `deployments.jsonl`."""

    model_config = ConfigDict(frozen=True)

    at: FiniteFloat
    """Unix seconds at which the version entered the stage."""
    version: int
    stage: Stage
    share: FiniteFloat = Field(default=0.0, ge=0, le=1)
    """The share of the conversations of production that the version answers, seen or not."""
    previous: int | None = None
    """The version that answers the others while this one is watched."""
    experiment: str
    """The id of the candidate's trial, by which conversations are assigned."""
    began: FiniteFloat
    """Unix seconds at which the trial began; conversations from then on are assigned."""
    by: str
    """The person or the program that changed it."""
    reason: str = ""

    @classmethod
    def begin(
        cls,
        version: int,
        share: float = 0.0,
        *,
        by: str,
        stage: Stage = Stage.CANARY,
        reason: str = "",
    ) -> Self:
        """Return the trial of a version that begins at a stage."""
        return cls(version=version, stage=stage, share=share, by=by, reason=reason, **_new())

    @property
    def is_open(self) -> bool:
        """Whether a decision on the version is still to be made."""
        return self.stage is Stage.CANDIDATE or self.serves

    @property
    def serves(self) -> bool:
        """Whether the version is compared with another one, which answers calls too."""
        return self.stage.is_trial or self.stage is Stage.WATCHED

    @property
    def beside(self) -> int | None:
        """The version that answers calls beside the current one; None: none does."""
        if self.stage is Stage.WATCHED:
            return self.previous
        return self.version if self.serves else None

    @property
    def makes_current(self) -> int | None:
        """The version that becomes current with this stage; None: it stays."""
        if self.stage.is_served:
            return self.version
        return self.previous if self.stage is Stage.RETIRED else None

    def describe(self) -> str:
        """Return the stage as words."""
        if self.stage is Stage.SHADOW:
            return f"in the shadow of {self.share:.4g} of the conversations"
        if self.stage is Stage.CANARY:
            return f"a canary for {self.share:.4g} of the conversations"
        if self.stage is Stage.CANDIDATE:
            return "a candidate, which its gates examine"
        if self.stage is Stage.WATCHED:
            return f"watched: v{self.previous} answers {1 - self.share:.4g} of the conversations"
        return str(self.stage)

    def move(self, stage: Stage, *, by: str, share: float = 0.0, reason: str = "") -> Self:
        """Return the version at its next stage.

        Raises:
            BadDeployment: when no step leads there.
        """
        if stage not in NEXT[self.stage]:
            following = " or ".join(NEXT[self.stage]) or "none"
            raise BadDeployment(
                f"Version {self.version} is {self.stage} and cannot become {stage}. Next stages: "
                f"{following}."
            )
        changed = {"at": time.time(), "stage": stage, "share": share, "by": by, "reason": reason}
        begins = stage.is_trial and self.stage not in (stage, Stage.CANARY)
        return self.model_copy(update={**changed, **(_new() if begins else {})})

    def watch(self, previous: int, share: float, *, by: str, reason: str = "") -> Self:
        """Return the version as a current one that is compared with the version before it.

        Raises:
            BadDeployment: when it is not a canary.
        """
        watched = self.move(Stage.WATCHED, by=by, share=share, reason=reason)
        return watched.model_copy(update={"previous": previous, **_new()})

    def end(self, current: int, *, by: str, reason: str = "") -> Self:
        """Return the end of a trial after a version became current: this one, or another."""
        if current == self.version:
            return self.move(Stage.CURRENT, by=by, reason=reason)
        reason = reason or f"version {current} became current"
        return self.move(Stage.RETIRED, by=by, reason=reason)


def _new() -> dict[str, Any]:
    """Return the fields of an experiment that begins now."""
    now = time.time()
    return {"at": now, "began": now, "experiment": secrets.token_hex(8)}


def read_deployments(folder: Path) -> list[Deployment]:
    """Return the stages of all candidates of the policy in `folder`, oldest first.

    Raises:
        BadPolicyFile: when a line cannot be read.
    """
    path = folder / DEPLOYMENTS
    lines = path.read_text().splitlines() if path.exists() else ()
    return [_read_line(path, number, line) for number, line in enumerate(lines, 1)]


def _read_line(path: Path, number: int, line: str) -> Deployment:
    try:
        return Deployment.model_validate_json(line)
    except ValueError as error:
        first = str(error).splitlines()[0]
        raise BadPolicyFile(
            f"Line {number} of {path} is damaged ({first}). Remove the line; without the file no "
            "version is a candidate, and the current version answers all calls."
        ) from error


def find_candidate(folder: Path) -> Deployment | None:
    """Return the version of the policy in `folder` that is on trial; None if there is none.

    Raises:
        BadPolicyFile: when the file is damaged.
    """
    deployments = read_deployments(folder)
    return deployments[-1] if deployments and deployments[-1].is_open else None


def find_retired(folder: Path) -> list[int]:
    """Return the versions of the policy in `folder` that were taken back.

    Raises:
        BadPolicyFile: when the file is damaged.
    """
    last = {each.version: each.stage for each in read_deployments(folder)}
    return sorted(version for version, stage in last.items() if stage is Stage.RETIRED)


def record_deployment(folder: Path, deployment: Deployment) -> None:
    """Add a stage to those of the policy in `folder`."""
    lines = (each.model_dump_json() for each in (*read_deployments(folder), deployment))
    write_file(folder / DEPLOYMENTS, "".join(f"{line}\n" for line in lines))


def find_freeze(folder: Path) -> Freeze | None:
    """Return since when and why the policy in `folder` is frozen; None if it is not.

    Raises:
        BadPolicyFile: when the file is damaged.
    """
    path = folder / FREEZE
    try:
        return Freeze.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        first = str(error).splitlines()[0]
        raise BadPolicyFile(
            f"{path} is damaged ({first}). Remove it to let other versions become current."
        ) from error
