"""Convert columns of a table to fields of an OTLP message."""

from collections.abc import Iterable, Mapping
from typing import Any

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
