"""Convert OTLP values to text and to `Map(String, String)`, as the exporter writes them, and back.

Integers are decimal, bytes are base64, arrays and maps are JSON as Go writes it: without spaces and
with sorted keys. Go fails on numbers that JSON cannot represent (an infinite log-probability);
ltrain writes what Python's `json` reads, so that the rest of the array is not lost.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from decimal import Decimal
from math import isfinite
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from ltrain_collector.signals.rowbinary import (
    MAX_CACHED_LENGTH,
    VARINTS,
    cached_string,
    string,
    varint,
)


def attributes(pairs: Iterable[KeyValue]) -> bytes:
    """Return attributes as Map(String, String) in RowBinary."""
    parts = [b""]
    append = parts.append
    for attribute in pairs:
        key = attribute.key
        value = attribute.value
        raw = (value.string_value or value_text(value)).encode()
        size = len(raw)
        append(
            cached_string(key) if len(key) < MAX_CACHED_LENGTH else string(key)
        )  # `short_string`, inlined
        append(VARINTS[size] if size < len(VARINTS) else varint(size))
        append(raw)
    parts[0] = varint(len(parts) // 3)
    return b"".join(parts)


def service_name(pairs: Iterable[KeyValue]) -> str:
    """Return the `service.name` of a resource."""
    return next((value_text(one.value) for one in pairs if one.key == "service.name"), "")


def value_text(value: AnyValue) -> str:
    """Return a value as text; '' if it is not set."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return value.string_value
    if kind == "int_value":
        return str(value.int_value)
    if kind == "double_value":
        number = value.double_value
        return _number(number) if isfinite(number) else _infinite(number)
    if kind == "bytes_value":
        return b64encode(value.bytes_value).decode()
    return _json(value) if kind else ""


def _json(value: AnyValue) -> str:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return _quoted(value.string_value)
    if kind == "int_value":
        return str(value.int_value)
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    if kind == "double_value":
        number = value.double_value
        return _number(number) if isfinite(number) else json.dumps(number)
    if kind == "array_value":
        return f"[{','.join(map(_json, value.array_value.values))}]"
    if kind == "kvlist_value":
        items = {item.key: item.value for item in value.kvlist_value.values}
        return f"{{{','.join(f'{_quoted(key)}:{_json(items[key])}' for key in sorted(items))}}}"
    if kind == "bytes_value":
        return f'"{b64encode(value.bytes_value).decode()}"'
    return "null"


def _quoted(value: str) -> str:
    quoted = json.dumps(value, ensure_ascii=False)
    return quoted.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _number(value: float) -> str:
    """Format a double as Go and JavaScript do: with an exponent below 1e-6 and from 1e21."""
    shortest = repr(value).removesuffix(".0")
    if "e" not in shortest:
        return shortest
    if 1e-6 <= abs(value) < 1e21:
        return format(Decimal(shortest), "f")
    return shortest.replace("e-0", "e-")


def _infinite(value: float) -> str:
    name = "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
    return f"json: unsupported value: {name}"


Row = Mapping[str, Any]
"""A row by column name; times are in nanoseconds."""


def add_attributes(target: Any, attributes: Any) -> None:
    """Add the pairs of a map to the attributes `target` of an OTLP message, as strings."""
    pairs: Iterable[tuple[str, str]] = (
        attributes.items() if isinstance(attributes, dict) else attributes
    )
    for key, value in pairs:
        target.add(key=key).value.string_value = value


def parse_id(text: str) -> bytes:
    """Return the bytes of a hexadecimal id; b"" if it is not one."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def nested_rows(row: Row, group: str, *names: str) -> Iterable[tuple[Any, ...]]:
    """Return the items of a nested column, each with its fields in the order of `names`."""
    return zip(*(row[f"{group}.{name}"] for name in names), strict=True)
