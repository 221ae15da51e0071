"""The unit that an experiment assigns as a whole: no conversation is answered by two versions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ltrain_instrument.settings import SESSION_FIELDS
from ltrain_train.gateway.conversations.client_sessions import find_session
from ltrain_train.gateway.conversations.conversations import Placement


@dataclass(frozen=True, slots=True)
class Unit:
    """A conversation, a session that a request in a trace names, or that trace."""

    key: str
    began: float
    """Unix seconds; infinity: unknown."""


def find_unit(
    placement: Placement | None, headers: Mapping[str, str], body: Mapping[str, Any], trace: int
) -> Unit:
    """Return the unit of a call.

    Args:
        placement: the place of a call without a trace in its conversation.
        headers: those of the request, with names in lower case.
        body: the request.
        trace: the id of the trace of the call's span.
    """
    if placement is not None:
        conversation = placement.conversation
        return Unit(conversation.session, conversation.began)
    named = find_session(headers, body, SESSION_FIELDS.read())
    has_session = named is not None and not named.is_bucket
    return Unit(named.id if named and has_session else f"{trace:032x}", math.inf)
