"""All APIs of the gateway, and the error bodies of each."""

import re

from ltrain_train.gateway.apis.api import Api
from ltrain_train.gateway.apis.completions import CHAT, COMPLETIONS
from ltrain_train.gateway.apis.count_tokens import Count
from ltrain_train.gateway.apis.gemini import generate
from ltrain_train.gateway.apis.gemini.answer import gemini_error
from ltrain_train.gateway.apis.messages import COUNT, MESSAGES
from ltrain_train.gateway.apis.messages_answer import message_error
from ltrain_train.gateway.apis.responses import RESPONSES

APIS: tuple[Api, ...] = (CHAT, RESPONSES, MESSAGES, COMPLETIONS, *generate.APIS)
COUNTS: tuple[Count, ...] = (COUNT, *generate.COUNTS)
MODEL = "{model:path}"
"""The model in the path of an API."""
PATHS = ", ".join(api.path.replace(MODEL, "MODEL") for api in APIS)
"""All paths, for an error."""
GEMINI_PATH = re.compile(r"/v1(beta)?/models/.+:\w+\Z")


def find_api(path: str) -> tuple[Api, str] | None:
    """Return the API of a request's path, and the model in the path."""
    for api in APIS:
        beginning, _, end = api.path.partition(MODEL)
        if path == api.path:
            return api, ""
        if end and path.startswith(beginning) and path.endswith(end):
            return api, path[len(beginning) : -len(end)]
    return None


def error_body(path: str, status: int, body: bytes) -> bytes:
    """Return the body of an error response as the API of a request's path has it."""
    if GEMINI_PATH.search(path):
        return gemini_error(status, body)
    own = path.endswith((MESSAGES.path, COUNT.path))
    return message_error(status, body) if own else body
