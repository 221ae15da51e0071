"""Responses that clients continue by their ids: `serve.responses_state`."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.gateway.kept_responses.routes import ResponsesState

open_face(__name__)
