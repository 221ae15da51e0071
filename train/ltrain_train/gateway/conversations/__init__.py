"""Whole conversations from calls that come without a trace: their trace, session, tools, agent."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.gateway.conversations.agent_names import named_agent
    from ltrain_train.gateway.conversations.conversations import Conversations, Placement
    from ltrain_train.gateway.conversations.units import Unit, find_unit
    from ltrain_train.gateway.conversations.untraced_calls import UntracedCalls, open_conversations

open_face(__name__)
