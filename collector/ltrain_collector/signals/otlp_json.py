"""OTLP in JSON: protobuf's JSON, except that ids are hex and enums are numbers.

Unknown fields and null values are skipped; 64-bit integers can be numbers or strings.
Protobuf's `json_format` with converted ids takes five times the CPU of this reader.
"""

from base64 import b64decode
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from ltrain_collector.errors import Malformed

IDS = ("trace_id", "span_id", "parent_span_id")
"""Fields in hex; other bytes are base64."""

JSON_IDS = ("traceId", "spanId", "parentSpanId")

MAX_DEPTH = 100
"""Limit of nested messages, as in protobuf."""


def parse_json(body: bytes, kind: type[Message]) -> Message:
    """Parse a message in JSON."""
    import orjson  # the agent's environment lacks it, and reads the schema

    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _malformed(kind, error) from error
    return message_from_json(document, kind)


def message_from_json(document: object, kind: type[Message]) -> Message:
    """Convert a parsed JSON document to a message."""
    message = kind()
    try:
        _fill(message, document, MAX_DEPTH)
    except (ValueError, TypeError, OverflowError) as error:
        raise _malformed(kind, error) from error
    return message


def _malformed(kind: type[Message], error: Exception) -> Malformed:
    return Malformed(f"This is not an OTLP {kind.DESCRIPTOR.name} in JSON: {error}")


def message_to_json(message: Message) -> dict[str, Any]:
    """Convert a message to a JSON document, as the Collector writes it."""
    document = MessageToDict(message, use_integers_for_enums=True)
    return dict(_with_hex_ids(document))


def _with_hex_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _hex_value(key, each) for key, each in value.items()}
    return [_with_hex_ids(each) for each in value] if isinstance(value, list) else value


def _hex_value(key: str, value: Any) -> Any:
    if key in JSON_IDS:
        return b64decode(value).hex()
    return value if key == "attributes" else _with_hex_ids(value)


def _fill(message: Any, plain: object, depth: int) -> None:
    if not isinstance(plain, dict):
        raise ValueError(f"{message.DESCRIPTOR.name} must be an object, not {_describe(plain)}.")
    if not depth:
        raise ValueError(f"messages are nested deeper than {MAX_DEPTH}.")
    fields = _fields(message.DESCRIPTOR)
    for key, value in plain.items():
        field = fields.get(key)
        if field is None or value is None:
            continue
        name, repeated, read = field
        try:
            if read is None:
                part = getattr(message, name)
                for one in _items(value) if repeated else (value,):
                    _fill(part.add() if repeated else part, one, depth - 1)
                if not repeated:
                    part.SetInParent()
            elif repeated:
                getattr(message, name).extend([read(one) for one in _items(value)])
            else:
                setattr(message, name, read(value))
        except (KeyError, AttributeError) as error:
            raise ValueError(f"{key} cannot be {_describe(value)}.") from error
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{key}: {error}") from None


def _items(value: object) -> Iterable[object]:
    if not isinstance(value, list):
        raise ValueError(f"expected an array, not {_describe(value)}.")
    return value


Read = Callable[[Any], object]


@lru_cache(maxsize=256)
def _fields(descriptor: Descriptor) -> dict[str, tuple[str, bool, Read | None]]:
    """Return by JSON name: the field, whether it is repeated, and its reader (None: a message)."""
    fields = {}
    for field in descriptor.fields:
        entry = (field.name, field.is_repeated, _reader(field))
        fields[field.json_name] = fields[field.name] = entry
    return fields


def _reader(field: FieldDescriptor) -> Read | None:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return None
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {value.name: value.number for value in field.enum_type.values}
        return lambda value: names[value] if isinstance(value, str) else _integer(value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes.fromhex if field.name in IDS else _bytes
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return _float
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return _boolean
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _text
    return _integer


def _integer(value: object) -> int:
    if isinstance(value, str):
        return int(value) if len(value) < 32 else int("?")
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError(f"expected an integer, not {_describe(value)}.")
    return int(value)


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a number, not {_describe(value)}.")
    return float(value)


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, not {_describe(value)}.")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a string, not {_describe(value)}.")
    return value


def _bytes(value: str) -> bytes:
    """Decode base64 of either alphabet, with or without padding."""
    return b64decode(
        value.replace("-", "+").replace("_", "/") + "=" * (-len(value) % 4), validate=True
    )


def _describe(value: object) -> str:
    return repr(value)[:40] if not isinstance(value, dict | list) else type(value).__name__
