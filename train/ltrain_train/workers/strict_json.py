"""Strict parsing of JSON from an agent: NaN and infinities, which Python accepts, are refused."""

import json
from typing import Any


def parse_json(text: str) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: when the text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
