"""The constraints that a policy server applies to requests: its grammars of structured output.

vLLM constrains more than what an agent asks for: a strict tool gets a grammar too. So the server is
asked: its render route returns the sampling of a request after its own tool and reasoning parsers.
"""

import asyncio
from collections import OrderedDict
from hashlib import sha256
from http import HTTPStatus
from typing import Any

import orjson

from ltrain_instrument.tokens import Operation, Request
from ltrain_train.gateway.serving.upstream import Upstream, UpstreamFailed
from ltrain_train.policy import Constraint

CONSTRAINING = ("tools", "response_format", "structured_outputs")
"""Fields without which no request is constrained."""
DECISIVE = (
    *(*CONSTRAINING, "tool_choice", "parallel_tool_calls"),
    *("stop_token_ids", "reasoning_effort", "chat_template_kwargs", "include_reasoning"),
)
"""Fields that decide the constraint of a request."""
ASKING = ("response_format", "structured_outputs")
MAX_SPEC_BYTES = 1 << 20
"""Largest grammar that a span records."""
MAX_KNOWN = 1000
"""Number of different constraints that are remembered."""
NO_ROUTE = (
    *(HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND),
    *(HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED),
)
"""The answers of a server without the render route, or with the route turned off."""

END, END_OR_TOOL = ("</think>", ""), ("</think>", "<tool_call>")
REASONING_ENDS = {
    **dict.fromkeys(("deepseek_r1", "deepseek_v3", "deepseek_v4", "deepseek_v41"), END),
    **dict.fromkeys(("ernie45", "holo2", "poolside_v1", "step3"), END),
    **dict.fromkeys(("glm45", "glm47", "granite_thinking_parser", "ling3", "mimo"), END_OR_TOOL),
    **dict.fromkeys(("minicpmv", "nemotron_v3", "qwen3", "step3p5"), END_OR_TOOL),
    "gemma4": ("<channel|>", "<|tool_call>"),
    "kimi_k2": ("</think>", "<|tool_calls_section_begin|>"),
    "minimax_m2": ("</think>", "<minimax:tool_call>"),
    "seed_oss": ("</seed:think>", "<seed:tool_call>"),
}
"""`Constraint.reasoning_end` and `Constraint.tool_start` of the reasoning parsers of vLLM 0.32 that
find the end of the reasoning by one token. `StructuredOutputManager` in vLLM asks the parser."""

MAY_REASON = "the constraint may begin only after the model's reasoning"


class NotReplayable(ValueError):
    """The masks of a constrained call cannot be computed again."""


class RequestFault(Exception):
    """The server refused the request, as it would refuse the call."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"The policy server refused the request with status {status}.")
        self.status, self.body = status, body


class AppliedConstraints:
    """Returns the constraint of each request; equal fields have equal constraints."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._known: OrderedDict[bytes, Constraint | None] = OrderedDict()
        self._settings: dict[str, Any] | None = None
        self._asking = asyncio.Lock()

    def forget(self) -> None:
        """Forget all constraints, because the server may have started with other options."""
        self._known.clear()
        self._settings = None

    async def find(self, request: Request, model: str) -> Constraint | None:
        """Return the constraint of a request to `model`; None if every id may be sampled.

        Raises:
            NotReplayable: when there is a constraint that the learner cannot apply.
            RequestFault: when the server refuses the request.
            UpstreamFailed: when the server does not answer.
        """
        body = request.body
        if not any(body.get(name) for name in CONSTRAINING):
            return None
        decisive = {name: body[name] for name in DECISIVE if body.get(name) is not None}
        key = sha256(orjson.dumps([request.operation, decisive])).digest()
        if key in self._known:
            return self._known[key]
        constraint, depends_on_prompt = await self._ask(request.operation, {**body, "model": model})
        if not depends_on_prompt:
            self._known[key] = constraint
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return constraint

    async def _ask(
        self, operation: Operation, body: dict[str, Any]
    ) -> tuple[Constraint | None, bool]:
        """Return the constraint of a request, and whether its prompt decides where it begins."""
        fields = {name: value for name, value in body.items() if not name.startswith("stream")}
        status, text = await self._upstream.render(operation, fields)
        if status in NO_ROUTE:
            return _without_render(body), False
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise UpstreamFailed(f"The policy server failed on the request: {text[:500]!r}.")
        if status != HTTPStatus.OK:
            raise RequestFault(status, text)
        try:
            rendered = orjson.loads(text)
            [rendered] = rendered if isinstance(rendered, list) else [rendered]
            params = rendered["sampling_params"].get("structured_outputs")
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise UpstreamFailed(
                f"The policy server at {self._upstream.address} does not answer a request for the "
                f"sampling of a call as vLLM does: {error!r}."
            ) from error
        constraint = _read_constraint(rendered, params or {}, await self._upstream.version())
        has_parser = bool(rendered.get("reasoning_parser_kwargs"))
        # vLLM renders a completion without its reasoning
        may_reason = has_parser or operation == "text_completion"
        if constraint and may_reason and not rendered.get("reasoning_ended"):
            end = await self._find_reasoning_end(operation)
            constraint = constraint.model_copy(update=end)
        return constraint, has_parser

    async def _find_reasoning_end(self, operation: Operation) -> dict[str, str]:
        """Return the fields of a constraint that may begin after the model's reasoning."""
        async with self._asking:  # vLLM takes a second of its CPU for the first answer
            if self._settings is None:
                self._settings = await self._upstream.structured_outputs()
        if self._settings is None:
            raise NotReplayable(
                f"{MAY_REASON}: the server does not report its reasoning parser (start vLLM with "
                "VLLM_SERVER_DEV_MODE=1, or let `ltrain serve` start it)"
            )
        return _read_reasoning_end(self._settings, operation)


def _read_reasoning_end(settings: dict[str, Any], operation: Operation) -> dict[str, str]:
    parser = settings.get("reasoning_parser")
    if not parser or settings.get("enable_in_reasoning"):
        return {}
    if operation == "text_completion":
        raise NotReplayable(
            f"{MAY_REASON}: the server does not report whether the prompt of a completion ends it "
            "(send a chat completion)"
        )
    if parser not in REASONING_ENDS or settings.get("reasoning_parser_plugin"):
        raise NotReplayable(
            "the constraint begins only after the model's reasoning: the reasoning parser "
            f"'{parser}' does not find the end of it by one token"
        )
    return dict(zip(("reasoning_end", "tool_start"), REASONING_ENDS[parser], strict=True))


def _read_constraint(
    rendered: dict[str, Any], params: dict[str, Any], server: str
) -> Constraint | None:
    constraint = Constraint.from_structured_outputs(
        params,
        stop_token_ids=tuple(rendered["sampling_params"].get("stop_token_ids") or ()),
        server=server,
    )
    if constraint is None:
        return None
    if len(constraint.spec) > MAX_SPEC_BYTES:
        raise NotReplayable(f"its grammar has more than {MAX_SPEC_BYTES} characters")
    return constraint


def _without_render(body: dict[str, Any]) -> Constraint | None:
    """Return None if no vLLM constrains the request, for a server without the render route."""
    tools = body.get("tools") or ()
    strict = any((tool.get("function") or {}).get("strict") for tool in tools)
    single = bool(tools) and body.get("parallel_tool_calls") is False
    forced = bool(tools) and body.get("tool_choice") not in (None, "auto", "none")
    if strict or single or forced or any(body.get(name) for name in ASKING):
        raise NotReplayable(
            "the policy server does not report its grammar (start vLLM 0.32 or later with "
            "--enable-scale-out, or let `ltrain serve` start it)"
        )
    return None
