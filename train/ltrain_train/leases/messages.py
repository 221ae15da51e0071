"""The JSON messages between a runner, the gateway's lease queue and workers."""

from typing import Any

from pydantic import BaseModel, Field

from ltrain_train.workers import Outcome

MAX_SLOTS = 100_000
"""Maximum attempts that a worker may run at a time."""


class LeasedAttempt(BaseModel):
    """An attempt as a worker gets it."""

    id: str
    """Its execution id."""
    identity: dict[str, Any]
    task: dict[str, Any]
    """The fields of the task that the agent may read."""
    path: str
    """Path of its model endpoint at the gateway, such as `/rollout/…/v1`."""
    key: str = Field(repr=False)
    """The gateway's key of this attempt."""
    model: str
    traceparent: str
    prompts: dict[str, dict[str, Any]] = {}
    """The prompts that the agent may read, by name: `version` and `text`."""
    started: int
    """Unix nanoseconds."""
    timeout: float
    """Seconds."""
    isolated: bool = False


class LeaseResult(BaseModel):
    """How an attempt ended in a worker."""

    id: str
    outcome: Outcome
    reason: str = ""
    output: str = "null"
    """The agent's result as a JSON text: JSON parsers differ in the depth and in the characters
    that they read."""
    died: bool = False


class Offer(BaseModel):
    """A runner's attempts for workers, and those that exceeded their time limit."""

    runner: str
    """An id of the runner, made at random."""
    version: str
    """The runner's version of ltrain."""
    attempts: list[LeasedAttempt] = []
    overdue: list[str] = []


class Room(BaseModel):
    """The answer to an offer."""

    room: int
    """Attempts of this runner that all workers can run at a time."""


class ResultsRequest(BaseModel):
    """A runner's request for the results of its attempts."""

    runner: str
    in_flight: list[str] = []
    """Attempts that were offered and have no result yet."""
    received: list[str] = []
    """Attempts whose result the runner has."""
    wait: float = 0.0
    """Seconds to wait for a result."""


class Results(BaseModel):
    """The answer to a runner: results stay in the queue until the runner reports them received."""

    results: list[LeaseResult]
    unknown: list[str]
    """Attempts in flight that the queue does not have: the gateway was started again, or the runner
    did not report for too long."""
    room: int


class Take(BaseModel):
    """A worker's request for attempts."""

    worker: str
    """An id of the worker, made at random."""
    version: str
    """The worker's version of ltrain."""
    slots: int = Field(ge=1, le=MAX_SLOTS)
    """Attempts that it runs at a time."""
    free: int = Field(ge=0)
    """Attempts that it can start now."""
    held: list[str] = []
    """Attempts that it has: what the queue leased to it beyond them was lost on the way."""
    wait: float = 0.0
    """Seconds to wait for an attempt."""


class Leased(BaseModel):
    """Attempts that a worker has taken."""

    attempts: list[LeasedAttempt]


class Heartbeat(BaseModel):
    """A worker's report of what it runs, by which its leases last."""

    worker: str
    running: list[str]
    leaves: bool = False
    """Whether the worker stops and returns all its leases."""


class WorkerOrders(BaseModel):
    """The answer to a heartbeat."""

    overdue: list[str]
    """Attempts that the worker ends as timeouts."""
    lost: list[str]
    """Attempts that are no longer the worker's, which it ends without a result."""


class Finished(BaseModel):
    """A worker's results."""

    worker: str
    results: list[LeaseResult]


class Refusals(BaseModel):
    """The answer to a worker's results."""

    refused: list[str]
    """Attempts whose lease had ended: their results do not count."""
