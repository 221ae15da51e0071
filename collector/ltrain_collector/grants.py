"""What the key of a request allows, and what the store records about its holder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ltrain_collector.sender import Sender
from ltrain_instrument.attributes import ROLLOUT_ID


class Role(StrEnum):
    """What a key is for."""

    QUERY = "query"
    """Reads the database `otel` with SQL."""
    INGEST = "ingest"
    """Puts spans, logs and metrics in over OTLP."""
    SERVICE = "service"
    """Puts in what ltrain's own processes record: gateway, runner, learner, loop."""
    ADMIN = "admin"
    """May do all."""


INGESTING = {
    Role.INGEST: Sender.INGEST,
    Role.SERVICE: Sender.SERVICE,
    Role.ADMIN: Sender.ADMIN,
}
"""The roles that put something in, and what the store records about their keys' holders."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What the key of a request allows."""

    role: Role
    name: str = ""
    """The key's id, by which it is listed; of a bound key its rollout, or its run."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """Attributes that everything sent with a bound key carries, by their names; else empty."""
    rewards: bool = False
    """A bound key that may say what its own rollout is worth."""

    @property
    def rollout(self) -> str | None:
        """The rollout that the key is bound to; None for a run's key too."""
        return self.identity.get(ROLLOUT_ID)

    @property
    def bound(self) -> bool:
        """Whether this is the key of an agent."""
        return bool(self.identity)

    @property
    def sender(self) -> Sender:
        """What the store records about the key's holder."""
        return Sender.AGENT if self.bound else INGESTING.get(self.role, Sender.NONE)

    @property
    def reads(self) -> bool:
        return self.role in (Role.QUERY, Role.ADMIN)

    @property
    def ingests(self) -> bool:
        return self.role in INGESTING
