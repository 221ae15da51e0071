"""Prompts that continue a conversation by its token ids: `serve.continue_tokens`."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.gateway.continuation.continuation import Continuation
    from ltrain_train.gateway.continuation.known_turns import KnownTurns

open_face(__name__)
