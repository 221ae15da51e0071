"""The APIs that clients use, each converted to one that the model's server answers."""

from ltrain_train.gateway.apis.api import Answer, Api, ClientCall
from ltrain_train.gateway.apis.body import bad_request
from ltrain_train.gateway.apis.completions import CHAT, COMPLETIONS
from ltrain_train.gateway.apis.count_tokens import count_tokens
from ltrain_train.gateway.apis.messages import MESSAGES, parse_count
from ltrain_train.gateway.apis.messages_answer import message_error
from ltrain_train.gateway.apis.response_fields import error_message, error_sentence, parse_error
from ltrain_train.gateway.apis.responses import RESPONSES

APIS: tuple[Api, ...] = (CHAT, RESPONSES, MESSAGES, COMPLETIONS)
COUNT_PATH = f"{MESSAGES.path}/count_tokens"
"""The path of requests to count the tokens of a prompt."""


def error_body(path: str, status: int, body: bytes) -> bytes:
    """Return the body of an error response as the API of a request's path has it."""
    own = path.endswith((MESSAGES.path, COUNT_PATH))
    return message_error(status, body) if own else body


__all__ = [
    "APIS",
    "COUNT_PATH",
    "Answer",
    "Api",
    "ClientCall",
    "bad_request",
    "count_tokens",
    "error_body",
    "error_message",
    "error_sentence",
    "parse_count",
    "parse_error",
]
