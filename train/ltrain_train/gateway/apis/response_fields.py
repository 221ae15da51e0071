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

    Raises:
        ValueError: when the text is not a JSON object.
    """
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:  # perhaps NaN or a lone surrogate, which `json` accepts
        payload, text = parse_and_replace(body.decode(), replacements)
        return payload, text.encode()
    if not isinstance(payload, dict):
        raise ValueError("it is not a JSON object")
    if not replacements:
        return payload, body
    new_values = {name: orjson.loads(text) for name, text in replacements.items()}
    replaced = _replace(payload, new_values)
    if isinstance(choices := payload.get("choices"), list):
        replaced["choices"] = [_replace(choice, new_values) for choice in choices]
    return payload, orjson.dumps(replaced)


def _replace(fields: object, new_values: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    changed = {name: new for name, new in new_values.items() if fields.get(name) is not None}
    return {**fields, **changed}
