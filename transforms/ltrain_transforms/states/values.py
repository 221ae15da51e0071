"""Values of semantic variables: as JSON, as a digest that compares, as what a prompt would show.

JSON is written with sorted keys and without spaces, so equal values have equal texts. The digest
leaves out what differs between equal states: ids of messages and of tool calls, and metadata of
the response.
"""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import orjson

from ltrain_transforms.untrusted import parsed

SHORTEST = 3
"""Characters below which a text that occurs in a prompt says nothing."""
SHOWN = ("page_content", "content", "text")
"""Keys of a document or a message whose text is what a prompt shows of it."""

ROLES = ("user", "human", "assistant", "ai", "system")

ENVELOPE = ("tags", "metadata", "kwargs")
"""What traceloop's payloads of LangChain's callbacks hold beside the inputs or outputs."""


def structured(text: Any) -> Any:
    """Read an object or a list; any other text, numbers too, stays as it was said."""
    return parsed(text) if isinstance(text, str) and text.lstrip()[:1] in ("{", "[") else text


def dump(value: Any) -> str:
    """Write JSON with sorted keys."""
    return _written(value).decode()


def digest(value: Any) -> str:
    """Hash a value's JSON: 64 bits of SHA-256, in hexadecimal."""
    return sha256(_written(value)).hexdigest()[:16]


def dumped(value: Any, same: Any) -> tuple[str, str]:
    """Give a value's JSON, and the digest of `same`, which is often the very value."""
    written = _written(value)
    return written.decode(), (sha256(written).hexdigest()[:16] if same is value else digest(same))


def _written(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def part(variable: str, digest: str) -> int:
    """Give what one variable adds to the digest of a state."""
    return int.from_bytes(sha256(f"{variable}={digest}".encode()).digest()[:8])


def together(parts: Iterable[int]) -> str:
    """Give the digest of a state: a sum, so that it takes no order and one write changes one."""
    return f"{sum(parts) % 2**64:016x}"


def comparable(value: Any) -> Any:
    """Give `value` without the parts that differ between equal states."""
    if isinstance(value, list):
        return [_spoken(item) or item for item in value]
    return (_spoken(value) or value) if isinstance(value, dict) else value


def needles(value: Any) -> tuple[str, ...]:
    """Give the texts of which one, found in a prompt, says that it shows `value`.

    Of a list any item will do, of an item its longest text.
    """
    texts = [longest(item) for item in value] if isinstance(value, list) else [longest(value)]
    return tuple([text for text in texts if len(text) >= SHORTEST])


def longest(value: Any) -> str:
    """Give the longest text inside of `value`; of a message or a document what it says."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, dict):
        message = _spoken(value)
        if message is not None:
            return longest([message[2], [arguments for _, arguments in message[3]]])
        said = next((value[key] for key in SHOWN if isinstance(value.get(key), str)), None)
        return said.strip() if said else max(map(longest, value.values()), key=len, default="")
    if isinstance(value, list):
        return max(map(longest, value), key=len, default="")
    return ""


def opened(value: Any) -> Any:
    """Take what was given or came out from the envelope that traceloop puts around it."""
    for key in ("inputs", "outputs"):
        if isinstance(value, dict) and key in value and value.keys() <= {key, *ENVELOPE}:
            return value[key]
    return value


def text_in(value: Any) -> Any:
    """Give the text that an agent was given or gave: of messages the last one's, else `value`."""
    if isinstance(value, dict):
        inner = value.get("messages")
        if isinstance(inner, list):
            return text_in(inner)
        message = _spoken(value)
        if message is None and len(value) != 1:
            return value
        return text_in(next(iter(value.values())) if message is None else message[2])
    if isinstance(value, list) and value:
        if len(value) == 2 and value[0] in ROLES:  # LangChain's short form of a message
            return value[1]
        return text_in(value[-1]) if isinstance(value[-1], dict | list) else value
    return value


def _spoken(value: Any) -> list[Any] | None:
    """Give role, name, content and tool calls of a message, however it is serialised."""
    if not isinstance(value, dict):
        return None
    # LangChain: messages_to_dict has `data`, its constructor form `kwargs`
    own = value if "role" in value else None
    inner = value.get("data") or value.get("kwargs") or own
    if not isinstance(inner, dict):
        return None
    if "content" not in inner:
        return _in_parts(inner)
    role = value.get("role") or inner.get("type") or value.get("type")
    asked = inner.get("tool_calls")
    listed = asked if isinstance(asked, list) else []
    calls = [_asked(call) for call in listed if isinstance(call, dict)]
    return [role, inner.get("name"), _without_ids(inner["content"]), calls]


def _in_parts(message: Mapping[str, Any]) -> list[Any] | None:
    """Give the same of a message as the gen_ai conventions have it."""
    parts = message.get("parts")
    if not isinstance(parts, list):
        return None
    objects = [part for part in parts if isinstance(part, dict)]
    texts = [str(part.get("content")) for part in objects if part.get("type") == "text"]
    asked = [part for part in objects if part.get("type") == "tool_call"]
    results = [part.get("response", part.get("result")) for part in objects]
    content = "".join(texts) or next((each for each in results if each is not None), "")
    calls = [(part.get("name"), part.get("arguments")) for part in asked]
    return [message.get("role"), message.get("name"), content, calls]


def _asked(call: Mapping[str, Any]) -> tuple[Any, Any]:
    function = call.get("function")
    if isinstance(function, dict):  # OpenAI's form
        return function.get("name"), structured(function.get("arguments"))
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
