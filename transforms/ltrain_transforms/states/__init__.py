"""Calls -> states: the semantic variables of an execution, who wrote them and who read them."""

from ltrain_transforms.states.from_calls import states
from ltrain_transforms.states.snapshots import digest, snapshot

__all__ = ["digest", "snapshot", "states"]
