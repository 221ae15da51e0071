"""Token ids and log-probabilities of a policy's calls, recorded at the agent's HTTP client."""

from ltrain_instrument.tokens import clients
from ltrain_instrument.tokens.events import DONE, EventSplitter
from ltrain_instrument.tokens.fields import parse_and_replace
from ltrain_instrument.tokens.request import Operation, Request, build_request, unchanged_request
from ltrain_instrument.tokens.response import ModelResponse
from ltrain_instrument.tokens.span import CallSpan

__all__ = [
    "DONE",
    "CallSpan",
    "EventSplitter",
    "ModelResponse",
    "Operation",
    "Request",
    "build_request",
    "clients",
    "parse_and_replace",
    "unchanged_request",
]
