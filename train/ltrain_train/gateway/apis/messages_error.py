"""Errors as Anthropic's clients read them."""

from http import HTTPStatus

import orjson

from ltrain_train.gateway.apis.response_fields import error_message

TYPES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
"""The type of an error by its status; else `invalid_request_error`, or from 500 on `api_error`."""


def error_body(status: int, body: bytes) -> bytes:
    """Return the body of an error response in the form of Anthropic's API.

    Args:
        body: the response in another form: of OpenAI's APIs, or any text.
    """
    kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error"
    error = {"type": TYPES.get(status, kind), "message": error_message(body)}
    return orjson.dumps({"type": "error", "error": error})
