"""`/v1/chat/completions` and `/v1/completions`, which the server itself has."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ltrain_instrument.tokens import DONE, Operation, Request
from ltrain_train.gateway.apis.api import ClientCall, encode_event
from ltrain_train.gateway.apis.body import Body, ChatBody, CompletionBody, parse_body
from ltrain_train.gateway.apis.request_fields import (
    COMPLETION_RULES,
    FieldRule,
    require_supported,
    rules_by_field,
)
from ltrain_train.gateway.apis.request_limits import RequestLimits
from ltrain_train.gateway.apis.response_fields import replace_fields


class ServerAnswer:
    """The server's response without the fields that the client did not request."""

    def __init__(self, request: Request) -> None:
        self._request, self._replacements = request, request.replacements

    def complete(self, body: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the response twice, with and without those fields."""
        return replace_fields(body, self._replacements)

    def chunk(self, data: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the chunk, and its event unless it has only token ids."""
        payload, seen = replace_fields(data, self._replacements)
        left_out = self._request.is_token_only_chunk(payload)
        return payload, b"" if left_out else encode_event(seen)

    def error(self, status: int, body: bytes) -> bytes:
        """Return the event of an error."""
        return encode_event(body)

    def error_body(self, status: int, body: bytes) -> bytes:
        """Return the body as it is."""
        return body

    def end(self) -> bytes:
        """Return the event that ends each stream."""
        return encode_event(DONE)


@dataclass(frozen=True, slots=True)
class ServerApi:
    """An API whose requests the server answers as they are."""

    path: str
    operation: Operation
    fields: type[Body]
    own_fields: Mapping[str, FieldRule]
    """Fields with a treatment of their own in this API."""

    def parse(self, raw: bytes, limits: RequestLimits, model: str = "") -> ClientCall:
        """Parse and validate a request."""
        body = parse_body(self.fields, raw, limits)
        require_supported(body, self.own_fields)
        return ClientCall(self.operation, body, ServerAnswer)


CHAT = ServerApi("/v1/chat/completions", "chat", ChatBody, {})
COMPLETIONS = ServerApi(
    "/v1/completions", "text_completion", CompletionBody, rules_by_field(COMPLETION_RULES)
)
