"""A client of a language model that ltrain itself asks: a judge, or the critic of prompts.

Each call has a span of the runner's scope: it is not a call of the agent, and no build reads it.
"""

import json
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from ltrain_instrument.errors import LtrainError
from ltrain_instrument.privacy import remove_url_credentials
from ltrain_instrument.tokens import CallSpan, ModelResponse, Request, unchanged_request
from ltrain_train.rollout.rewards.endpoint import EndpointAway, JsonEndpoint
from ltrain_train.rollout.rewards.limits import RewardLimits
from ltrain_train.rollout.rewards.source import RewardFailed

if TYPE_CHECKING:  # its import takes a second, which a runner without such a model saves
    from ltrain_transforms.recipe import UpstreamModel

StartCall = Callable[[Request], CallSpan]
"""Starts the span of a call."""


class BadUpstream(LtrainError, ValueError):
    """A model that ltrain asks has no server, or its key is not set."""


class _Message(BaseModel):
    role: str = "assistant"
    content: str


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Completion(BaseModel):
    """The parts of a chat completion that are read and recorded."""

    id: str | None = None
    choices: list[_Choice] = Field(min_length=1, max_length=1)
    usage: _Usage | None = None


class ChatModel:
    """Asks one model; several threads may use it."""

    def __init__(self, user: str, model: "UpstreamModel", limits: RewardLimits) -> None:
        """Prepare the client.

        Args:
            user: what asks the model, such as "The judge 'quality'".
            model: the model with the URL of its server.
            limits: how many calls run at a time, and how many start in a second.

        Raises:
            BadUpstream: when the variable with the model's key is not set.
        """
        url = f"{(model.url or '').rstrip('/')}/chat/completions"
        self.server = remove_url_credentials(url)
        self._model = model
        self._endpoint = JsonEndpoint(url, _read_key(user, model), limits)

    def complete(
        self, messages: Sequence[dict[str, str]], until: float, start_call: StartCall
    ) -> str:
        """Return the text of the model's answer; the last try ends at `until` (monotonic seconds).

        Raises:
            EndpointAway: when the server has not answered by then.
            ValidationError: when the answer is not a chat completion.
            ValueError: when the server refuses the request.
            RewardFailed: when the limits were closed.
        """
        body: dict[str, Any] = {"model": self._model.model, "messages": list(messages)}
        if self._model.temperature is not None:
            body["temperature"] = self._model.temperature
        request = unchanged_request("chat", body, self._model.model)
        span = start_call(request)
        try:
            payload = self._endpoint.post(json.dumps(request.body).encode(), until)
            completion = _Completion.model_validate(payload)
        except (EndpointAway, ValueError, RewardFailed) as error:
            span.end_with_error(type(error).__name__, str(error))
            raise
        response = ModelResponse()
        response.add_payload(completion.model_dump())
        span.end_with_response(response)
        return completion.choices[0].message.content

    def close(self) -> None:
        """Close the connections."""
        self._endpoint.close()


def _read_key(user: str, model: "UpstreamModel") -> str:
    if model.key is None:
        return ""
    if not os.environ.get(model.key):
        raise BadUpstream(
            f"{user} needs the key of its model in {model.key}, and that variable is "
            f"not set. Set it: export {model.key}=…"
        )
    return os.environ[model.key]
