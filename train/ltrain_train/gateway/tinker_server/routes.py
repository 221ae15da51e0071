"""The routes of vLLM that the gateway uses, answered by a Tinker server."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ltrain_instrument.tokens import MAX_BODY_BYTES, Operation
from ltrain_train.errors import describe_fault
from ltrain_train.gateway.errors import Refused, json_response, read_body
from ltrain_train.gateway.serving.upstream import (
    ALREADY_LOADED,
    LOAD_ADAPTER,
    PATHS,
    UNLOAD_ADAPTER,
)
from ltrain_train.gateway.tinker_server.answer import Completion, Sample
from ltrain_train.gateway.tinker_server.models import TinkerModels
from ltrain_train.gateway.tinker_server.rendering import Rendering
from ltrain_train.gateway.tinker_server.request import GREEDY, SampledRequest, bad_request

NO_WEIGHTS = (
    "A Tinker server samples its base model and the adapters that it has trained; it loads no full "
    'weights. Publish adapters, or serve this version with vLLM: on = "vllm" in [serve].'
)
R = TypeVar("R")
Answer = Callable[[Request], Awaitable[Response]]


class Adapter(BaseModel):
    """The body of a request to load or unload an adapter."""

    lora_name: str
    lora_path: Path = Path()


@dataclass
class PolicyRoutes:
    """A policy server."""

    name: str
    """The model's served name."""
    models: TinkerModels
    rendering: Rendering
    max_model_len: int
    """Most tokens of prompt and response together."""
    label: str = "default"
    """The label of the weights, as the gateway set it."""
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    """Renders and parses: a tokenizer is for one thread at a time."""

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/health", self._health),
            Route("/version", self._version),
            Route("/v1/models", self._list_models),
            Route("/weight_info", self._label),
            *(_post(path, partial(self._complete, kind)) for kind, path in PATHS.items()),
            *(_post(f"{path}/render", partial(self._render, kind)) for kind, path in PATHS.items()),
            _post("/tokenize", self._tokenize),
            _post(LOAD_ADAPTER, self._load),
            _post(UNLOAD_ADAPTER, self._unload),
            _post("/update_weight_version", self._set_label),
            _post("/pause", _refuse_weights),
        ]
        return Starlette(routes=routes, exception_handlers={Refused: _refused})

    async def _health(self, request: Request) -> Response:
        return json_response({"waiting": self.models.waiting})

    async def _version(self, request: Request) -> Response:
        return json_response({"version": ""})

    async def _list_models(self, request: Request) -> Response:
        fields = {"object": "model", "max_model_len": self.max_model_len}
        models = [{"id": name, **fields} for name in (self.name, *self.models.adapters)]
        return json_response({"object": "list", "data": models})

    async def _label(self, request: Request) -> Response:
        return json_response({"weight_version": self.label})

    async def _set_label(self, request: Request) -> Response:
        self.label = str((await _json(request)).get("new_version"))
        return json_response({"success": True})

    async def _load(self, request: Request) -> Response:
        adapter = _adapter(await _json(request))
        if adapter.lora_name in self.models.adapters:
            text = f"The lora adapter '{adapter.lora_name}' {ALREADY_LOADED.decode()}."
            return PlainTextResponse(text, HTTPStatus.BAD_REQUEST)
        try:
            await self.models.load(adapter.lora_name, adapter.lora_path)
        except Refused as refused:  # 404 means that there is no such route
            is_full = refused.status == HTTPStatus.INSUFFICIENT_STORAGE
            status = refused.status if is_full else HTTPStatus.CONFLICT
            return PlainTextResponse(refused.message, status)
        return PlainTextResponse(f"Success: LoRA adapter '{adapter.lora_name}' added.")

    async def _unload(self, request: Request) -> Response:
        found = await self.models.unload(_adapter(await _json(request)).lora_name)
        return PlainTextResponse("removed" if found else "unknown", 200 if found else 404)

    async def _complete(self, operation: Operation, http: Request) -> Response:
        request = await self._parse(operation, http)
        prompt = await self._prompt(operation, request)
        options = self._options(request, len(prompt))
        name = None if request.model == self.name else request.model
        answer = await self.models.sample(name, prompt, request.n, options)
        cached = int(getattr(answer, "prompt_cache_hit_tokens", 0) or 0)
        make = partial(self._make, operation, request, prompt, answer.sequences, cached)
        body = await self._run(make)
        if request.stream:
            return StreamingResponse(iter(body), media_type="text/event-stream")
        return Response(body[0], media_type="application/json")

    def _make(
        self,
        operation: Operation,
        request: SampledRequest,
        prompt: list[int],
        sequences: Any,
        cached: int,
    ) -> list[bytes]:
        """Return the events of a stream, or one complete body."""
        samples = [_read_sample(each, request, self.rendering) for each in sequences]
        made = Completion(operation, request, self.rendering, prompt, samples, cached)
        return list(made.events()) if request.stream else [made.body()]

    async def _render(self, operation: Operation, http: Request) -> Response:
        request = await self._parse(operation, http)
        prompt = await self._prompt(operation, request)
        sampling = {"stop_token_ids": request.stop_token_ids, "structured_outputs": None}
        rendered = {"token_ids": prompt, "sampling_params": sampling}
        return json_response(rendered if operation == "chat" else [rendered])

    async def _tokenize(self, http: Request) -> Response:
        request = await self._parse("chat", http)
        prompt = await self._prompt("chat", request)
        counts = {"count": len(prompt), "max_model_len": self.max_model_len}
        return json_response({**counts, "tokens": prompt})

    async def _parse(self, operation: Operation, http: Request) -> SampledRequest:
        raw = await read_body(http, "request", MAX_BODY_BYTES)
        request = SampledRequest.parse(operation, raw)
        if request.model not in (self.name, *self.models.adapters):
            sentence = f"The model `{request.model}` does not exist."
            raise Refused(HTTPStatus.NOT_FOUND, sentence)
        return request

    async def _prompt(self, operation: Operation, request: SampledRequest) -> list[int]:
        if request.prompt_ids is not None:
            return request.prompt_ids
        if operation == "chat":
            render = partial(self.rendering.render, request)
        else:
            render = partial(self.rendering.encode, str(request.prompt))
        return await self._run(render)

    def _options(self, request: SampledRequest, prompt: int) -> dict[str, Any]:
        """Return the SDK's sampling parameters.

        Raises:
            Refused: 400, when prompt and answer are too long.
        """
        left, limit = self.max_model_len - prompt, request.limit
        if left < (limit or 1):
            raise bad_request(
                f"This model's maximum context length is {self.max_model_len} tokens. However, the "
                f"prompt has {prompt} tokens, and {limit or 1} are to be sampled."
            )
        return {
            "max_tokens": limit or left,
            "temperature": 0.0 if request.temperature < GREEDY else request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k or -1,
            "seed": request.seed,
            "stop": [*self.rendering.stop_ids, *request.stop_token_ids],
        }

    async def _run(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _read_sample(sequence: Any, request: SampledRequest, rendering: Rendering) -> Sample:
    ids, logprobs = list(sequence.tokens), list(sequence.logprobs)
    sample = Sample(ids, logprobs, is_cut=sequence.stop_reason == "length")
    return sample.cut_at(request.stop_texts, rendering) if request.stop_texts else sample


def _post(path: str, answer: Answer) -> Route:
    return Route(path, answer, methods=["POST"])


async def _json(request: Request) -> dict[str, Any]:
    raw = await read_body(request, "request", MAX_BODY_BYTES)
    try:
        return dict(orjson.loads(raw))
    except (orjson.JSONDecodeError, TypeError, ValueError) as error:
        raise bad_request("The body is not a JSON object.") from error


def _adapter(body: dict[str, Any]) -> Adapter:
    try:
        return Adapter.model_validate(body)
    except ValidationError as error:
        raise bad_request(f"The request is wrong: {describe_fault(error)}.") from error


async def _refuse_weights(request: Request) -> Response:
    return PlainTextResponse(NO_WEIGHTS, HTTPStatus.CONFLICT)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return Response(error.body, error.status, media_type="application/json")
