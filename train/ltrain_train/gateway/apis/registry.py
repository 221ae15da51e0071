"""All APIs of the gateway, and the error bodies of each."""

from ltrain_train.gateway.apis.api import Api
from ltrain_train.gateway.apis.completions import CHAT, COMPLETIONS
from ltrain_train.gateway.apis.messages import MESSAGES
from ltrain_train.gateway.apis.messages_answer import message_error
from ltrain_train.gateway.apis.responses import RESPONSES

APIS: tuple[Api, ...] = (CHAT, RESPONSES, MESSAGES, COMPLETIONS)
COUNT_PATH = f"{MESSAGES.path}/count_tokens"
"""The path of requests to count the tokens of a prompt."""


def error_body(path: str, status: int, body: bytes) -> bytes:
    """Return the body of an error response as the API of a request's path has it."""
    own = path.endswith((MESSAGES.path, COUNT_PATH))
    return message_error(status, body) if own else body
