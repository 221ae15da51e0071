"""Token ids and log-probabilities of a policy's calls, recorded at the agent's HTTP client."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_instrument.tokens import clients
    from ltrain_instrument.tokens.events import DONE, EventSplitter
    from ltrain_instrument.tokens.fields import parse_and_replace
    from ltrain_instrument.tokens.request import (
        MAX_BODY_BYTES,
        Operation,
        Request,
        build_request,
        unchanged_request,
    )
    from ltrain_instrument.tokens.response import ModelResponse
    from ltrain_instrument.tokens.span import CallSpan

open_face(__name__)
