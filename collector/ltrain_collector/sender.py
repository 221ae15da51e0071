"""The kinds of senders that the store records, by which readers decide whom they believe."""

from enum import StrEnum


class Sender(StrEnum):
    """Who put a row into the store; recorded as the resource attribute `ltrain.sender`."""

    AGENT = "agent"
    """The holder of a bound key."""
    INGEST = "ingest"
    """The holder of an ingest key."""
    SERVICE = "service"
    """A process of ltrain: gateway, runner, learner or loop."""
    ADMIN = "admin"
    """The holder of an admin key."""
    NONE = "none"
    """A program on the store's machine that showed no key; the store asked for none."""
    LOCAL = "local"
    """A program that opened the store's folder itself."""
    IMPORT = "import"
    """A file that `ltrain import` read."""
