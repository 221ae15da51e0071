"""An API of a client: a conversion of its requests, and one of the server's responses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from ltrain_instrument.attributes import OMITTED
from ltrain_instrument.tokens import Operation, Request
from ltrain_train.gateway.apis.omissions import Omissions
from ltrain_train.gateway.apis.request_limits import RequestLimits


class Answer(Protocol):
    """Converts the server's response to one call into what the client gets."""

    def complete(self, body: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the server's response as an object, and the client's as JSON.

        Raises:
            ValueError: when the server's response is not a JSON object.
        """

    def chunk(self, data: bytes) -> tuple[dict[str, Any], bytes]:
        """Return a chunk of the server's stream as an object, and the events for the client.

        Raises:
            ValueError: when the chunk is not a JSON object.
        """

    def end(self) -> bytes:
        """Return the last events of the client's stream."""

    def error(self, status: int, body: bytes) -> bytes:
        """Return the event of an error, whose response would have this status and body."""

    def error_body(self, status: int, body: bytes) -> bytes:
        """Return the body of an error response as the client's API has it.

        Args:
            body: as OpenAI's APIs have it, or any text of a server.
        """


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A client's request, as the server's API has it."""

    operation: Operation
    body: dict[str, Any]
    answer: Callable[[Request], Answer]
    """Returns the conversion of the response to the request that the server gets."""
    requested: Mapping[str, Any] | None = None
    """The request as the client sent it; None where `body` is that."""
    omitted: Omissions | None = None
    """The parts of the client's request that `body` lacks; None in an API without such parts."""

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes of the call's span about its conversion."""
        counts = self.omitted.counts() if self.omitted else {}
        return {OMITTED: orjson.dumps(counts).decode()} if counts else {}


class Api(Protocol):
    """One route of the model."""

    @property
    def path(self) -> str:
        """The path of its requests; `{model:path}` in it is the name of the model."""

    def parse(self, raw: bytes, limits: RequestLimits, model: str = "") -> ClientCall:
        """Parse and validate a request.

        Args:
            model: the model of an API that names it in the path.

        Raises:
            Refused: 400, when it is not a valid request; the message names the field. 413, when it
                is beyond the limits.
        """


def encode_event(data: bytes, kind: str | None = None) -> bytes:
    """Return a server-sent event."""
    head = f"event: {kind}\n".encode() if kind else b""
    return head + b"data: " + data + b"\n\n"
