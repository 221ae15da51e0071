"""Requests to the policy: a rollout key imposes its sampling on them."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import orjson

from ltrain_instrument.allow import Allow
from ltrain_instrument.tokens import Operation, Request, build_request
from ltrain_train.gateway.apis import bad_request
from ltrain_train.gateway.trainable_requests import NEUTRAL_SAMPLING, require_trainable


def build_policy_request(
    operation: Operation,
    body: dict[str, Any],
    served: str,
    sampling: dict[str, float],
    trained: bool = False,
    allowed: Collection[Allow] = (),
    *,
    hides_model: bool = False,
) -> Request:
    """Convert an agent's request to the request that the policy server answers.

    Args:
        operation: the API of the request.
        body: what `parse_body` returned.
        served: the model's name in the policy server.
        sampling: sampling imposed on the call; empty imposes nothing.
        trained: whether the call is made in mode `train`.
        allowed: untrainable features that a call in mode `train` may use.
        hides_model: whether the policy server may answer under another name than `served`.

    Raises:
        Refused: 400, when it uses a feature that is not allowed, or cannot be encoded.
    """
    if trained:
        chosen_fields = {name: value for name, value in body.items() if name not in sampling}
        require_trainable(chosen_fields, allowed)
    request = (
        _impose_sampling(operation, body, served, sampling)
        if sampling
        else build_request(operation, body, served_model=served)
    )
    try:
        orjson.dumps(request.body)
    except TypeError as error:  # a number or a text that JSON cannot represent
        raise bad_request(
            f"The request cannot be encoded as JSON: {error}. Send valid JSON numbers and text."
        ) from error
    return replace(request, hides_model=True) if hides_model else request


def _impose_sampling(
    operation: Operation, body: dict[str, Any], served: str, sampling: dict[str, float]
) -> Request:
    imposed = NEUTRAL_SAMPLING | sampling
    overruled = {
        name: body[name] for name in imposed if body.get(name) not in (None, imposed[name])
    }
    # a seed would make all rollouts of a group the same
    if "seed" not in imposed and body.get("seed") is not None:
        overruled["seed"] = body.pop("seed")
    return build_request(
        operation, body, served_model=served, imposed=imposed, overridden=overruled
    )
