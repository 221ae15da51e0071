"""Calls -> states: the semantic variables of an execution, who wrote them and who read them."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.states.from_calls import states
    from ltrain_transforms.states.snapshots import digest, snapshot

open_face(__name__)
