"""A chat request as it comes to the gateway, and the sampling that a key imposes on it."""

from collections.abc import Collection
from typing import Any

import orjson

from ltrain_instrument.allow import Allow
from ltrain_instrument.tokens.request import Request, build_request
from ltrain_train.gateway.body import bad, read_body
from ltrain_train.gateway.liberties import require_trainable
from ltrain_train.gateway.sampling import NEUTRAL


def read_request(
    raw: bytes,
    served: str,
    sampling: dict[str, float],
    trained: bool = False,
    allowed: Collection[Allow] = (),
) -> Request:
    """Read an agent's request and make it one that the server `served` answers for training.

    Args:
        raw: the body.
        served: the model's name in the policy server.
        sampling: imposed on it; empty imposes nothing.
        trained: whether it is made in mode `train`.
        allowed: what such a call may ask for although it makes it untrainable.

    Raises:
        Refused: 400, when it is no chat request, or may not ask for what it does.
    """
    body = read_body(raw)
    if trained:
        asked = {name: value for name, value in body.items() if name not in sampling}
        require_trainable(asked, allowed)
    request = (
        _imposed(body, served, sampling)
        if sampling
        else build_request("chat", body, served_model=served)
    )
    try:
        orjson.dumps(request.body)
    except TypeError as error:  # a number or a text that JSON cannot say
        raise bad(f"The request cannot be passed on: {error}. Send plain JSON.") from error
    return request


def _imposed(body: dict[str, Any], served: str, sampling: dict[str, float]) -> Request:
    imposed = NEUTRAL | sampling
    overruled = {
        name: body[name] for name in imposed if body.get(name) not in (None, imposed[name])
    }
    # With a seed, the rollouts of a group would all be the same
    if "seed" not in imposed and body.get("seed") is not None:
        overruled["seed"] = body.pop("seed")
    return build_request("chat", body, served_model=served, imposed=imposed, overridden=overruled)
