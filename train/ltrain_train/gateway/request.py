"""A chat request as it comes to the gateway, and the sampling that a key imposes on it.

Imposed sampling replaces whatever would change the probabilities of the sampled tokens.
"""

from http import HTTPStatus
from typing import Any

import orjson

from ltrain_instrument.tokens.request import Request, ask
from ltrain_train.gateway.refusal import Refused

NEUTRAL: dict[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Sampling from the model's own distribution."""


def read_request(raw: bytes, served: str, sampling: dict[str, float]) -> Request:
    """Read an agent's request and make it one that the server `served` answers for training.

    Raises:
        Refused: when it is not a JSON object with a model and messages.
    """
    body = _parse(raw)
    if not sampling:
        return ask("chat", body, served=served)
    imposed = NEUTRAL | sampling
    overruled = {
        name: body[name] for name in imposed if body.get(name) not in (None, imposed[name])
    }
    # With a seed, the rollouts of a group would all be the same
    if "seed" not in imposed and body.get("seed") is not None:
        overruled["seed"] = body.pop("seed")
    return ask("chat", body, served=served, imposed=imposed, overruled=overruled)


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _bad(f"The request's body is not JSON: {error}.") from error
    if not isinstance(body, dict):
        raise _bad("The request's body is not a JSON object.")
    if not isinstance(body.get("model"), str):
        raise _bad("The request has no 'model': give the policy's name.")
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise _bad("The request has no 'messages': give a list of chat messages.")
    return body


def _bad(sentence: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, sentence)
