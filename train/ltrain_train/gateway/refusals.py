"""The responses of requests that end with an exception."""

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from ltrain_instrument.errors import LtrainError
from ltrain_instrument.machine import REMEDIES
from ltrain_train.gateway.apis import PATHS, error_body
from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.keys import BadKey
from ltrain_train.gateway.serving.upstream import UpstreamAway, UpstreamFailed
from ltrain_train.policy import BadModel, UnknownVersion

STATUS_OF: dict[type[Exception], HTTPStatus] = {
    BadKey: HTTPStatus.UNAUTHORIZED,
    UnknownVersion: HTTPStatus.NOT_FOUND,
    BadModel: HTTPStatus.UNPROCESSABLE_ENTITY,
    UpstreamAway: HTTPStatus.SERVICE_UNAVAILABLE,
    UpstreamFailed: HTTPStatus.BAD_GATEWAY,
}


def _refusal_response(request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, Refused) else HTTPStatus.INTERNAL_SERVER_ERROR
    body = error.body if isinstance(error, Refused) else b""
    body = error_body(request.url.path, status, body)
    again = error.retry_after if isinstance(error, Refused) else None
    headers = {"retry-after": str(again)} if again else None
    return Response(body, status, headers, media_type="application/json")


def _user_error(request: Request, error: Exception) -> Response:
    status = STATUS_OF.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
    return _refusal_response(request, Refused(status, str(error)))


def _system_error(request: Request, error: Exception) -> Response:
    """Answer that the machine lacks files or room at the moment; any other error is raised."""
    if not isinstance(error, OSError) or error.errno not in REMEDIES:
        raise error
    return _refusal_response(
        request,
        Refused(
            HTTPStatus.SERVICE_UNAVAILABLE, f"The gateway cannot answer at the moment: {error}."
        ),
    )


def _no_route(request: Request, error: Exception) -> Response:
    sentence = (
        f"The gateway has no {request.method} {request.url.path}. It answers POST {PATHS} and GET "
        "/v1/models, and all of them under /rollout/<rollout>/attempt/<n>."
    )
    return _refusal_response(request, Refused(HTTPStatus.NOT_FOUND, sentence))


EXCEPTION_HANDLERS: dict[int | type[Exception], ExceptionHandler] = {
    Refused: _refusal_response,
    LtrainError: _user_error,
    OSError: _system_error,
    404: _no_route,
    405: _no_route,
}
"""The function that answers, by the exception or the status."""
