"""`previous_response_id` of `/v1/responses`, and the routes of responses that are kept.

A request that continues a response becomes the request with the whole input: what follows, from its
limits to its conversation and its prompt by token ids, treats it as any other.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from ltrain_instrument import tokens
from ltrain_train.gateway.apis import RESPONSES, Answer, ClientCall, RequestLimits, ResponsesAnswer
from ltrain_train.gateway.errors import Refused, json_response
from ltrain_train.gateway.kept_responses.store import KeptResponse, KeptResponses
from ltrain_train.gateway.request_pool import HeldRequest

PREVIOUS = "previous_response_id"


class UnknownResponse(Refused):
    """A response that is not kept, in the form of OpenAI's error."""

    def __init__(self, id: str, field: str | None = None) -> None:
        """Name the response, and the field of a request that names it."""
        status = HTTPStatus.BAD_REQUEST if field else HTTPStatus.NOT_FOUND
        found = "Previous response" if field else "Response"
        super().__init__(
            status,
            f"{found} with id '{id[:100]}' not found. The gateway keeps a response for an hour "
            "after its last use, in memory and for its own key, unless its request has "
            "store = false or the memory is full. Send the whole input.",
        )
        self._field = field

    @property
    def body(self) -> bytes:
        """The JSON body of the error response."""
        code = "previous_response_not_found" if self._field else None
        error = {"message": self.message, "type": "invalid_request_error"}
        return orjson.dumps({"error": {**error, "param": self._field, "code": code}})


class ResponsesState:
    """The responses of a gateway's clients."""

    def __init__(
        self, limits: RequestLimits, owner: Callable[[Scope, Mapping[str, str]], str]
    ) -> None:
        """Start empty; `owner` checks the key of a request, and returns whose responses it has."""
        self._kept, self._limits, self._owner = KeptResponses(), limits, owner

    def routes(self, prefix: str) -> list[Route]:
        """Return the routes of single responses."""
        path = f"{prefix}{RESPONSES.path}/{{id}}"
        return [
            Route(path, self.retrieve, methods=["GET"]),
            Route(path, self.delete, methods=["DELETE"]),
        ]

    async def retrieve(self, request: Request) -> Response:
        """Return a response as its client got it."""
        body = self._kept.body(self._key(request))
        if body is None:
            raise UnknownResponse(request.path_params["id"])
        return Response(body, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """Forget a response; those that continue it cannot be continued any more."""
        id = request.path_params["id"]
        if not self._kept.remove(self._key(request)):
            raise UnknownResponse(id)
        return json_response({"id": id, "object": "response", "deleted": True})

    async def parse(self, held: HeldRequest, owner: str) -> ClientCall:
        """Return the call of a request with its whole input; its response will be kept."""
        previous = None
        if PREVIOUS.encode() in held.body:
            whole, previous = await held.run(partial(self._whole, held.body, owner))
            await held.replace(whole)
        call = await held.parse(partial(RESPONSES.parse, limits=self._limits))
        requested = call.requested or {}
        if requested.get("store") is not False:
            known = previous.count if previous else 0
            keep = partial(self._keep, owner, previous, _items(requested["input"])[known:])
            call = replace(call, answer=partial(_answer, call.answer, previous, keep))
        return call

    def _key(self, request: Request) -> tuple[str, str]:
        return self._owner(request.scope, request.headers), request.path_params["id"]

    def _whole(self, raw: bytes, owner: str) -> tuple[bytes, KeptResponse | None]:
        """Return a request with its whole input, and the response that it continues, if any."""
        self._limits.require_values(raw)
        try:
            body = orjson.loads(raw)
            id = body.pop(PREVIOUS, None)
            own = orjson.dumps(_items(body.pop("input")))[1:-1]
            fields = orjson.dumps(body)
        except (ValueError, TypeError, AttributeError, KeyError):
            return raw, None  # the API refuses it
        if not isinstance(id, str):
            return raw, None
        found = self._kept.find((owner, id))
        if found is None:
            raise UnknownResponse(id, PREVIOUS)
        response, items = found
        whole = b'{"input":[%s],%s' % (b",".join([*items, *([own] if own else [])]), fields[1:])
        self._limits.require_size(len(whole))
        return whole, response

    def _keep(
        self, owner: str, previous: KeptResponse | None, own: list[Any], whole: bytes
    ) -> None:
        """Keep a response, which is JSON, and the own items of its request."""
        fields = orjson.loads(whole)
        output = fields.pop("output")
        count = (previous.count if previous else 0) + len(own) + len(output)
        lists = orjson.dumps(own)[1:-1], orjson.dumps(output)[1:-1]
        key, rest = (owner, fields["id"]), orjson.dumps(fields)
        self._kept.add(KeptResponse(key, previous, count, *lists, rest))


def _items(value: Any) -> list[Any]:
    """Return the items of an input, which may be a text."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise TypeError("it is neither a text nor a list")
    return value


def _answer(
    convert: Callable[[tokens.Request], Answer],
    previous: KeptResponse | None,
    keep: Callable[[bytes], None],
    request: tokens.Request,
) -> Answer:
    """Return the conversion of a response that is kept."""
    answer = convert(request)
    assert isinstance(answer, ResponsesAnswer), "RESPONSES made it"
    answer.state = {PREVIOUS: previous.key[1] if previous else None, "store": True}
    answer.keep = keep
    return answer
