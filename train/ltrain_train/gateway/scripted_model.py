"""A model that answers each call of an agent with the same text: the trial of an agent needs it.

Its server has the gateway's APIs, streamed or not. It reads a request as the gateway does, and
records which fields the gateway would refuse or correct in mode `train`.
"""

import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

import orjson

from ltrain_instrument.allow import Allow, ConstrainedCalls
from ltrain_instrument.tokens import Request, unchanged_request
from ltrain_train.gateway.apis import PATHS, ClientCall, RequestLimits, error_body, find_api
from ltrain_train.gateway.errors import Refused
from ltrain_train.gateway.trainable_requests import describe_corrections, find_faults


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One request of an agent."""

    path: str
    faults: tuple[str, ...] = ()
    """The gateway's sentences about a request that it refuses."""
    corrections: tuple[str, ...] = ()
    """A sentence for each field that the gateway removes."""
    has_tools: bool = False


class ScriptedModel:
    """Serves on a port of the loopback interface; use it in a `with` block."""

    def __init__(
        self,
        text: str,
        allow: Collection[Allow] = (),
        constrained: ConstrainedCalls = "masked",
    ) -> None:
        """Prepare the server.

        Args:
            text: the answer to each call.
            allow: untrainable fields that the recipe allows.
            constrained: how calls with structured output are trained.
        """
        self._text, self._allow, self._constrained = text, allow, constrained
        self.calls: list[ScriptedCall] = []
        """The calls in the order of their arrival."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.model = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, raw: bytes) -> tuple[str, bytes]:
        """Return the content type and the body of the response to a call.

        Raises:
            Refused: when there is no such API, or the request is not valid.
        """
        try:
            call = self._parse(path, raw)
        except Refused as refused:
            self.calls.append(ScriptedCall(path, (refused.message,)))
            raise
        faults = tuple(find_faults(call.body, self._allow, self._constrained))
        omitted = call.omitted.sentences() if call.omitted else ()
        corrections = (*describe_corrections(call.body, self._constrained), *omitted)
        self.calls.append(ScriptedCall(path, faults, corrections, bool(call.body.get("tools"))))
        request = unchanged_request(call.operation, call.body, call.body["model"])
        answer = call.answer(request)
        if not request.stream:
            return "application/json", answer.complete(orjson.dumps(self._response(request)))[1]
        chunks = (answer.chunk(orjson.dumps(each))[1] for each in self._chunks(request))
        return "text/event-stream; charset=utf-8", b"".join([*chunks, answer.end()])

    def _parse(self, path: str, raw: bytes) -> ClientCall:
        if found := find_api(path):
            api, model = found
            return api.parse(raw, RequestLimits.from_settings(), model)
        raise Refused(HTTPStatus.NOT_FOUND, f"The gateway has no POST {path}. It has {PATHS}.")

    def _response(self, request: Request) -> dict[str, Any]:
        message: dict[str, Any] = {"text": self._text}
        if request.operation == "chat":
            message = {"message": {"role": "assistant", "content": self._text}}
        return self._payload(request, message, {"usage": USAGE})

    def _chunks(self, request: Request) -> Iterator[dict[str, Any]]:
        message: dict[str, Any] = {"text": self._text}
        if request.operation == "chat":
            message = {"delta": {"role": "assistant", "content": self._text}}
        yield self._payload(request, message, {})
        if (request.body.get("stream_options") or {}).get("include_usage"):
            yield self._payload(request, message, {"choices": [], "usage": USAGE})

    def _payload(
        self, request: Request, message: dict[str, Any], fields: dict[str, Any]
    ) -> dict[str, Any]:
        kind = "chat.completion" if request.operation == "chat" else "text_completion"
        chunk = ".chunk" if request.stream and request.operation == "chat" else ""
        choices = [
            {"index": index, "finish_reason": "stop", "logprobs": None, **message}
            for index in range(request.choices)
        ]
        head = {"id": "scripted", "object": kind + chunk, "created": 0, "model": request.model}
        return {**head, "choices": choices, **fields}


USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = urlsplit(self.path).path
        try:
            kind, body = self._model.answer(path, raw)
        except Refused as refused:
            self._send(refused.status, error_body(path, refused.status, refused.body))
        else:
            self._send(HTTPStatus.OK, body, kind)

    def do_GET(self) -> None:
        model = {"id": "scripted", "object": "model", "created": 0, "owned_by": "ltrain"}
        self._send(HTTPStatus.OK, orjson.dumps({"object": "list", "data": [model]}))

    @property
    def _model(self) -> ScriptedModel:
        return self.server.model  # type: ignore[attr-defined,no-any-return]

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write no line for each request."""
