"""The response that an agent sees: without the fields that it did not request."""

from collections.abc import Mapping
from typing import Any

import orjson

from ltrain_instrument.tokens import parse_and_replace


def replace_fields(body: bytes, replacements: Mapping[str, str]) -> tuple[dict[str, Any], bytes]:
    """Return the JSON object in `body`, and its JSON with some fields replaced.

    `replacements` maps names of fields, in the object and in each of its `choices`, to their new
    JSON text. A field that is null or missing stays so. The values of the others are kept, but not
    their spaces, and an integer beyond 64 bits becomes a float.
    """
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:  # perhaps NaN or a lone surrogate, which `json` accepts
        payload, text = parse_and_replace(body.decode(), replacements)
        return payload, text.encode()
    choices = payload.get("choices") if isinstance(payload, dict) else None
    objects = [payload, *(choices if isinstance(choices, list) else ())]
    if not all(isinstance(each, dict) for each in objects):
        raise ValueError("it is not a JSON object, or one of its choices is not")
    if not replacements:
        return payload, body
    new_values = {name: orjson.loads(text) for name, text in replacements.items()}
    seen, *seen_choices = (_replace(each, new_values) for each in objects)
    if isinstance(choices, list):
        seen["choices"] = seen_choices
    return payload, orjson.dumps(seen)


def parse_error(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a response, or its text as an error."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        content = None
    return content if isinstance(content, dict) else {"error": body[:500].decode(errors="replace")}


def error_message(body: bytes) -> str:
    """Return the sentence of an error response."""
    return error_sentence(parse_error(body))


def error_sentence(payload: dict[str, Any]) -> str:
    """Return the sentence of an error response's object."""
    error = payload.get("error") or payload
    return str(error.get("message") if isinstance(error, dict) else error)


def _replace(fields: Mapping[str, Any], new_values: Mapping[str, Any]) -> dict[str, Any]:
    changed = {name: new for name, new in new_values.items() if fields.get(name) is not None}
    return {**fields, **changed}
