"""The kinds of senders that the store records; readers use them to decide which rows to trust."""

from enum import StrEnum


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
