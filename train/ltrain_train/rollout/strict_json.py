"""JSON from an agent: NaN and the infinities, which Python's reader takes, are none."""

import json
from typing import Any


def parse(text: str) -> Any:
    """Return what a text says as JSON.

    Raises:
        ValueError: when it is no JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
