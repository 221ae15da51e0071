"""A tool's arguments without the envelopes that frameworks put around them."""

import json
from functools import lru_cache
from typing import Any

from ltrain_transforms.traces import parse_json

ENVELOPE = '"input_str"'
"""A key of LangChain's callback payload, which traceloop writes unchanged."""


def unwrap_arguments(text: str | None) -> str | None:
    """Return the arguments of a tool: the JSON inside an envelope, else the text unchanged."""
    return text if text is None or ENVELOPE not in text else _unwrap(text)


@lru_cache(maxsize=256)  # traceloop writes the same payload twice
def _unwrap(text: str) -> str:
    payload: Any = parse_json(text)
    if not isinstance(payload, dict) or "input_str" not in payload:
        return text
    inputs = payload.get("inputs")
    if isinstance(inputs, dict) and inputs:
        return json.dumps(inputs, ensure_ascii=False)
    return str(payload["input_str"])
