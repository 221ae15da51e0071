"""Values of semantic variables: their JSON, their digest, and the texts that prompts show of them.

JSON is written with sorted keys and without spaces, so equal values have equal texts. The digest
leaves out the parts that differ between equal states: ids of messages and of tool calls, and
metadata of the response.
"""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import orjson

from ltrain_transforms.traces import Fields, parse_json, read_message

MIN_TEXT = 3
"""Characters; a shorter text may occur in a prompt by chance, so no search uses it."""
TEXT_KEYS = ("page_content", "content", "text")
"""Keys of a document or a message that hold the text which a prompt shows."""

ROLES = ("user", "human", "assistant", "ai", "system")

ENVELOPE = ("tags", "metadata", "kwargs")
"""Keys beside the inputs or outputs in traceloop's payloads of LangChain callbacks."""


def parse_structured(text: Any) -> Any:
    """Parse a JSON object or list; return any other text unchanged, numbers too."""
    return parse_json(text) if isinstance(text, str) and text.lstrip()[:1] in ("{", "[") else text


def to_json(value: Any) -> str:
    """Return JSON with sorted keys."""
    return _encode(value).decode()


def value_digest(value: Any) -> str:
    """Return the hash of a value's JSON: 64 bits of SHA-256, in hexadecimal."""
    return sha256(_encode(value)).hexdigest()[:16]


def json_and_digest(value: Any, comparable: Any) -> tuple[str, str]:
    """Return a value's JSON, and the digest of `comparable`, which is often the same object."""
    encoded = _encode(value)
    return encoded.decode(), (
        sha256(encoded).hexdigest()[:16] if comparable is value else value_digest(comparable)
    )


def _encode(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def variable_hash(variable: str, digest: str) -> int:
    """Return the number that one variable adds to the digest of a state."""
    return int.from_bytes(sha256(f"{variable}={digest}".encode()).digest()[:8])


def combine_hashes(parts: Iterable[int]) -> str:
    """Return the digest of a state: a sum, so it has no order, and a write changes one term."""
    return f"{sum(parts) % 2**64:016x}"


def without_ids(value: Any) -> Any:
    """Return `value` without the parts that differ between equal states."""
    if isinstance(value, list):
        return [_message_fields(item) or item for item in value]
    return (_message_fields(value) or value) if isinstance(value, dict) else value


def search_texts(value: Any) -> tuple[str, ...]:
    """Return the texts of the search; a prompt that holds one of them shows `value`.

    For a list these are the longest texts of its items.
    """
    texts = (
        [longest_text(item) for item in value] if isinstance(value, list) else [longest_text(value)]
    )
    return tuple([text for text in texts if len(text) >= MIN_TEXT])


def longest_text(value: Any) -> str:
    """Return the longest text inside `value`; for a message or a document its content."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, dict):
        message = _message_fields(value)
        if message is not None:
            return longest_text([message[2], [arguments for _, arguments in message[3]]])
        text = next((value[key] for key in TEXT_KEYS if isinstance(value.get(key), str)), None)
        return text.strip() if text else max(map(longest_text, value.values()), key=len, default="")
    if isinstance(value, list):
        return max(map(longest_text, value), key=len, default="")
    return ""


def unwrap_payload(value: Any) -> Any:
    """Return the inputs or outputs inside the envelope that traceloop puts around them."""
    for key in ("inputs", "outputs"):
        if isinstance(value, dict) and key in value and value.keys() <= {key, *ENVELOPE}:
            return value[key]
    return value


def last_text(value: Any) -> Any:
    """Return the text of an agent's input or output: of messages the last one, else `value`."""
    if isinstance(value, dict):
        inner = value.get("messages")
        if isinstance(inner, list):
            return last_text(inner)
        message = _message_fields(value)
        if message is None and len(value) != 1:
            return value
        return last_text(next(iter(value.values())) if message is None else message[2])
    if isinstance(value, list) and value:
        if len(value) == 2 and value[0] in ROLES:  # LangChain's short form of a message
            return value[1]
        return last_text(value[-1]) if isinstance(value[-1], dict | list) else value
    return value


def _message_fields(value: Any) -> list[Any] | None:
    """Return role, name, content and tool calls of a serialised message, in any form."""
    if not isinstance(value, dict):
        return None
    # LangChain: messages_to_dict has `data`, its constructor form `kwargs`
    own = value if "role" in value else None
    inner = value.get("data") or value.get("kwargs") or own
    if not isinstance(inner, dict):
        return None
    if "content" not in inner:
        return _fields_of_parts(inner)
    role = value.get("role") or inner.get("type") or value.get("type")
    requests = inner.get("tool_calls")
    requests = requests if isinstance(requests, list) else []
    calls = [_tool_call(call) for call in requests if isinstance(call, dict)]
    return [role, inner.get("name"), _without_ids(inner["content"]), calls]


def _fields_of_parts(fields: Fields) -> list[Any] | None:
    """Return the same of a message in the form of the gen_ai conventions."""
    if not isinstance(fields.get("parts"), list):
        return None
    message = read_message(fields)
    results = (result.value for result in message.tool_results if result.value is not None)
    calls = [(request.name, request.arguments) for request in message.tool_requests]
    return [message.role, fields.get("name"), message.text or next(results, ""), calls]


def _tool_call(call: Mapping[str, Any]) -> tuple[Any, Any]:
    function = call.get("function")
    if isinstance(function, dict):  # OpenAI's form
        return function.get("name"), parse_structured(function.get("arguments"))
    return call.get("name"), call.get("args")


def _without_ids(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    ids = ("id", "tool_use_id")
    return [
        {key: inner for key, inner in part.items() if key not in ids}
        if isinstance(part, dict)
        else part
        for part in content
    ]
