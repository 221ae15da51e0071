"""The rights of a key, and the sender that the store records for its holder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ltrain_instrument.attributes import ROLLOUT_ID


class Role(StrEnum):
    """The role of a key."""

    QUERY = "query"
    """Reads the database `otel` with SQL."""
    INGEST = "ingest"
    """Sends spans, logs and metrics over OTLP."""
    SERVICE = "service"
    """Sends the telemetry of ltrain's own processes: gateway, runner, learner, loop."""
    ADMIN = "admin"
    """Allows everything."""


class Sender(StrEnum):
    """The sender of a row, recorded as the resource attribute `ltrain.sender`."""

    AGENT = "agent"
    """The holder of a bound key."""
    INGEST = "ingest"
    """The holder of an ingest key."""
    SERVICE = "service"
    """An ltrain process: gateway, runner, learner or loop."""
    ADMIN = "admin"
    """The holder of an admin key."""
    NONE = "none"
    """A program on the store's machine that sent no key to a store without keys."""
    LOCAL = "local"
    """A program that opened the store's folder directly."""
    IMPORT = "import"
    """A file that `ltrain import` read."""


TRUSTED_SENDERS = (Sender.SERVICE, Sender.ADMIN, Sender.LOCAL)
"""Senders whose records readers believe by default."""


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a role in a store."""

    reads: bool = False
    sender: Sender | None = None
    """The sender that the store records for telemetry of the role; None if it cannot send."""


RIGHTS = {
    Role.QUERY: Rights(reads=True),
    Role.INGEST: Rights(sender=Sender.INGEST),
    Role.SERVICE: Rights(sender=Sender.SERVICE),
    Role.ADMIN: Rights(reads=True, sender=Sender.ADMIN),
}


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a request, from its key."""

    role: Role
    name: str = ""
    """The id of a made key; for a bound key its rollout or run."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """Attributes that a bound key sets on every record, by name; empty for other keys."""
    rewards: bool = False
    """Whether a bound key can send rewards of its own rollout."""

    @property
    def rollout(self) -> str | None:
        """The rollout that the key is bound to; None for a key of a run, and an unbound key."""
        return self.identity.get(ROLLOUT_ID)

    @property
    def bound(self) -> bool:
        """Whether the key is bound to a rollout or a run: an agent's key."""
        return bool(self.identity)

    @property
    def sender(self) -> Sender:
        """The sender that the store records for the key's holder."""
        return Sender.AGENT if self.bound else RIGHTS[self.role].sender or Sender.NONE

    @property
    def can_read(self) -> bool:
        return RIGHTS[self.role].reads

    @property
    def can_ingest(self) -> bool:
        return RIGHTS[self.role].sender is not None
