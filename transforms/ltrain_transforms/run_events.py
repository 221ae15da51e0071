"""The events of a run's journal, `LTRAIN_HOME/runs/RUN/journal.jsonl`; each is a line of JSON."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ltrain_transforms.alarms import DatasetFigures
from ltrain_transforms.ended_rollout import EndedRollout

Group = tuple[int, str]
"""Wave and task: the rollouts of a task in a wave are compared with each other."""


FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)


class Phase(NamedTuple):
    """A part of a wave's work; phases of several waves may overlap."""

    name: str
    began: float
    """Unix time."""
    ended: float


def _sum_phases(fields: Mapping[str, Any]) -> dict[str, float]:
    phases: Iterable[Phase] = fields.get("phases", ())
    seconds: dict[str, float] = {}
    for name, began, ended in phases:
        seconds[name] = round(seconds.get(name, 0.0) + ended - began, 2)
    return seconds


class Evaluation(BaseModel):
    """The results of a wave's rollouts."""

    model_config = FROZEN

    mode: str
    wave: int
    rollouts: int
    outcomes: dict[str, int]
    evaluations: dict[str, float]
    """Mean of each evaluation over the rollouts."""
    failures: str = ""
    """Why rollouts failed: the commonest reason, an example and its log; '' if none failed."""
    temperature: float | None = None
    """The temperature of held-out tasks; None in training."""
    phases: tuple[Phase, ...] = ()
    """When each phase ran."""
    seconds: dict[str, float] = Field(default_factory=_sum_phases)
    """Wall seconds by phase."""


class PolicyScore(BaseModel):
    """The score of one policy in a wave."""

    model_config = FROZEN

    version: int
    """The version that was served when the wave was dispatched."""
    score: float | None = None
    """The evaluations that reward the policy, by their weights; None without any."""
    tasks: dict[str, float] = {}
    """The score of each task, the mean over its rollouts."""


class Training(BaseModel):
    """The results of an update of a policy on a wave."""

    model_config = FROZEN

    dataset: str | None = None
    """Id of the dataset that was built from the wave."""
    rules: dict[str, float] = {}
    """Mean of each rule's rewards over the rollouts."""
    samples: int = 0
    """The trained rows."""
    tokens: int = 0
    """Tokens of these rows."""
    drops: dict[str, int] = {}
    prompts: dict[str, int] = {}
    """Calls by their prompt under `serve.continue_tokens`, as `count_prompts` counts them."""
    alarms: tuple[str, ...] = ()
    """One sentence for each alarm, and then for each warning of the learner."""
    raised: tuple[tuple[str, str], ...] = ()
    """The kind and the subject of each alarm, in the order of `alarms`."""
    figures: DatasetFigures | None = None
    """The figures of the dataset that alarms read."""
    undone: int = 0
    """Optimizer steps that were undone because a number was not finite."""
    metrics: dict[str, float] = {}


class Event(BaseModel):
    """The kind of event; it never changes."""

    model_config = FROZEN


class Started(Event):
    """The run began: the first event."""

    event: Literal["started"] = "started"
    run: str
    recipe: str
    """Digest of the recipe."""
    policies: dict[str, int]
    """The first version of each trained policy."""


class Opened(Event):
    """A process began to work on the run, or to continue it."""

    event: Literal["opened"] = "opened"
    updates: int | None
    """Number of updates after which the run ends; None if it makes none, as `ltrain apo`."""


class Dispatched(Event):
    """Tasks were drawn for a wave, and now their rollouts may run."""

    event: Literal["dispatched"] = "dispatched"
    mode: str
    wave: int
    tasks: tuple[str, ...]


class Repeated(Event):
    """Every rollout of a wave failed: its attempts so far do not count."""

    event: Literal["repeated"] = "repeated"
    mode: str
    wave: int
    attempts: dict[str, int]
    """The number of the last attempt of each rollout."""


class Completed(Event):
    """The groups that a wave is trained and evaluated on have ended.

    Report, alarms and dataset of the wave are of these rollouts, and the store has to have them.
    """

    event: Literal["completed"] = "completed"
    mode: str
    wave: int
    rollouts: tuple[EndedRollout, ...]
    """Those that were dispatched in an earlier wave included."""

    @property
    def groups(self) -> list[Group]:
        """The groups of the rollouts."""
        return sorted({(each.wave, each.task) for each in self.rollouts})


class Evaluated(Event, Evaluation):
    """The rollouts of a wave's groups were counted and judged."""

    event: Literal["evaluated"] = "evaluated"
    policies: dict[str, PolicyScore]


class Trained(Event, Training):
    """A policy was trained on the groups of a wave, or there were no rows to train."""

    event: Literal["trained"] = "trained"
    policy: str
    wave: int
    changed: bool
    """Whether the weights changed: then a version is published."""
    phases: tuple[Phase, ...] = ()
    """When each phase ran."""
    seconds: dict[str, float] = Field(default_factory=_sum_phases)
    """Wall seconds by phase."""


class Published(Event):
    """The version of a policy that was trained on a wave was published."""

    event: Literal["published"] = "published"
    policy: str
    wave: int
    version: int


class Served(Event):
    """An earlier version of a policy was chosen to be served after the run."""

    event: Literal["served"] = "served"
    policy: str
    version: int


class Stopped(Event):
    """The run stopped after a training wave, because an alarm of `train.stop_on` was raised."""

    event: Literal["stopped"] = "stopped"
    wave: int
    alarms: tuple[str, ...]
    """Their sentences."""


class Finished(Event):
    """The run made its updates."""

    event: Literal["finished"] = "finished"


class Failed(Event):
    """An error ended the work on the run; the same command continues it."""

    event: Literal["failed"] = "failed"
    error: str


AnyEvent = Annotated[
    Started
    | Opened
    | Dispatched
    | Repeated
    | Completed
    | Evaluated
    | Trained
    | Published
    | Served
    | Stopped
    | Finished
    | Failed,
    Field(discriminator="event"),
]
EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
"""Parses a line."""

JOURNAL = "journal.jsonl"
"""The file of the events, in the folder of the run."""


def parse_events(content: bytes) -> list[AnyEvent]:
    """Return the events of a journal; a line that a kill cut off is ignored.

    Raises:
        ValueError: when a line is not an event, or the first one is not `started`.
    """
    complete, _, _ = content.rpartition(b"\n")
    events = [EVENT.validate_json(line) for line in complete.split(b"\n")]
    if not isinstance(events[0], Started):
        raise ValueError(f"its first event is '{events[0].event}', not 'started'")
    return events


def read_events(folder: Path) -> list[AnyEvent]:
    """Return the events of the run in a folder.

    Raises:
        OSError: when there is no journal.
        ValueError: when a line is not an event, or the first one is not `started`.
    """
    return parse_events((folder / JOURNAL).read_bytes())
