"""A request for a completion: its fields that a Tinker server can apply.

The gateway sends what it would send to vLLM. A Tinker server samples every token freely, by
temperature, top_p and top_k; a field that asks for more gets status 400.
"""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Annotated, Any, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ltrain_instrument.tokens import Operation
from ltrain_train.errors import describe_fault
from ltrain_train.gateway.apis import NEUTRAL_SAMPLING
from ltrain_train.gateway.apis.request_fields import Treatment, find_rule, has_effect
from ltrain_train.gateway.errors import Refused

WITHOUT_CHANGE = (Treatment.PASSED_ON, Treatment.CORRECTED)
"""Treatments of fields that change neither the prompt nor the sampling."""
NOT_APPLIED = ("documents", "top_logprobs", "include_stop_str_in_output", "prompt_logprobs")
"""Other fields whose effect an answer would lack."""
GREEDY = 1e-4
"""Temperatures below are 0: the most probable token, whose log-probability stays that of the model.
"""
FORMATS = ("response_format", "structured_outputs", "tool_choice")
"""Fields that a run can describe in the prompt."""
RELAX = (
    ' In a run, train.constrained = "relaxed" describes the format of the answer in the prompt '
    "instead."
)


class Handover(BaseModel):
    """The prompt's ids, where vLLM would get them from another server."""

    prompt_token_ids: list[int] = Field(min_length=1)


class SampledRequest(BaseModel):
    """A chat completion, or a completion."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str
    messages: list[dict[str, Any]] = []
    prompt: str | list[int] = ""
    tools: list[dict[str, Any]] = []
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: str | None = None
    kv_transfer_params: Handover | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    seed: int | None = None
    n: int = Field(default=1, ge=1, le=128)
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    stream: bool = False
    stream_options: dict[str, Any] = {}
    logprobs: bool | int | None = None
    return_token_ids: bool = False

    @classmethod
    def parse(cls, operation: Operation, raw: bytes) -> Self:
        """Return the request with this body.

        Raises:
            Refused: 400, when a field is wrong, or asks for what a Tinker server cannot do.
        """
        try:
            body = orjson.loads(raw)
            fields = {name: value for name, value in body.items() if value is not None}
            request = cls.model_validate(fields)
        except (orjson.JSONDecodeError, AttributeError) as error:
            raise bad_request("The body is not a JSON object.") from error
        except ValidationError as error:
            raise bad_request(f"The request is wrong: {describe_fault(error)}.") from error
        if operation == "chat" and not request.messages:
            raise bad_request("A chat needs messages.")
        if unknown := next(_unsupported(fields), None):
            hint = RELAX if unknown in FORMATS else ""
            raise bad_request(f"A Tinker server cannot apply '{unknown}'. Remove it.{hint}")
        return request

    @property
    def limit(self) -> int | None:
        """The most tokens of an answer."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def stop_texts(self) -> list[str]:
        """The texts at which the answer ends."""
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def parses_tools(self) -> bool:
        """Whether the answer may have tool calls."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer has log-probabilities; 0 of a completion asks for the sampled ones."""
        return self.logprobs is not None and self.logprobs is not False

    @property
    def prompt_ids(self) -> list[int] | None:
        """The ids of the prompt, if the request has them."""
        if self.kv_transfer_params is not None:
            return self.kv_transfer_params.prompt_token_ids
        return self.prompt if isinstance(self.prompt, list) else None

    @property
    def template_options(self) -> dict[str, Any]:
        """The options of the chat template."""
        effort = {"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}
        return {**effort, **self.chat_template_kwargs}


def bad_request(sentence: str) -> Refused:
    """Return the refusal of a request."""
    return Refused(HTTPStatus.BAD_REQUEST, sentence)


def _unsupported(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of a request that would be ignored, although they have an effect."""
    read = SampledRequest.model_fields.keys() - {"tool_choice"}
    for name, value in body.items():
        if name in NOT_APPLIED and value not in (0, False, [], {}):
            yield name
        elif name not in (*read, *NOT_APPLIED) and has_effect(name, value):
            changes = find_rule(name, value).treatment not in WITHOUT_CHANGE
            if changes and NEUTRAL_SAMPLING.get(name) != value:
                yield name
