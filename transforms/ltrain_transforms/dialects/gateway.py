"""Our own call spans: token ids, log-probabilities and policy version, as the server gave them.

Writers encode ids as JSON and log-probabilities as base64 of little-endian float32, several
choices as a list; plain lists of numbers are read too.
"""

import sys
from array import array
from base64 import b64decode
from typing import Any

from ltrain_instrument import attributes
from ltrain_transforms.dialects.partial import Partial, said
from ltrain_transforms.spans import Span, parsed

SCOPES = (attributes.SCOPE_GATEWAY, "ltrain.capture")


def read(span: Span) -> Partial:
    """Say what the `ltrain.*` attributes of a gateway's or a capture's span say."""
    if span.scope not in SCOPES:
        return {}
    constrained, delivered = span.flag(attributes.CONSTRAINED), span.get(attributes.DELIVERED)
    fields = said(
        kind="llm",
        measured=True,
        policy=span.get(attributes.POLICY_NAME),
        policy_version=span.whole(attributes.POLICY_VERSION),
        constrained=constrained or None,
    )
    if delivered is not None:
        fields["delivered"] = span.flag(attributes.DELIVERED)
    return {**fields, **_tokens(span)}


def _tokens(span: Span) -> Partial:
    prompt, response = span.json(attributes.PROMPT_TOKEN_IDS), _responses(span)
    logprobs = _logprobs(span.get(attributes.RESPONSE_LOGPROBS) or "")
    if prompt is None and response is None:
        return {}
    if not (_ids(prompt) and response and logprobs and _agree(span, prompt, response, logprobs)):
        return {"damaged": True}
    return {
        "prompt_token_ids": prompt,
        "response_token_ids": response,
        "response_logprobs": logprobs,
    }


def _responses(span: Span) -> list[list[int]] | None:
    """Give the ids of each choice; one choice is written as a plain list."""
    given = span.json(attributes.RESPONSE_TOKEN_IDS)
    if not isinstance(given, list):
        return None
    if given and all(_ids(choice) for choice in given):
        return given
    return [given] if _ids(given) else None


def _ids(given: Any) -> bool:
    return isinstance(given, list) and all(type(token) is int for token in given)


def _logprobs(text: str) -> list[list[float]] | None:
    # parsed only where it is a list: base64 may read as a JSON number
    given: Any = parsed(text) if text.startswith("[") else [text]
    if not isinstance(given, list):
        return None
    if given and all(isinstance(choice, str) for choice in given):
        decoded = [_floats(choice) for choice in given]
        return [choice for choice in decoded if choice is not None]
    return [[float(number) for number in given]] if _numbers(given) else None


def _numbers(given: list[Any]) -> bool:
    return all(isinstance(number, int | float) for number in given)


def _floats(text: str) -> list[float] | None:
    """Decode base64 of little-endian float32; null where it was cut short."""
    values = array("f")
    try:
        values.frombytes(b64decode(text, validate=True))
    except ValueError:
        return None
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def _agree(
    span: Span, prompt: list[int], response: list[list[int]], logprobs: list[list[float]]
) -> bool:
    """Compare lengths with each other and with the counts that were written beside them."""
    counts = (attributes.PROMPT_TOKEN_COUNT, attributes.RESPONSE_TOKEN_COUNT)
    told = [span.whole(name) for name in counts]
    seen = [len(prompt), sum(map(len, response))]
    whole = all(count is None or count == length for count, length in zip(told, seen, strict=True))
    return whole and list(map(len, response)) == list(map(len, logprobs))
