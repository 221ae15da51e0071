"""What a table has as text, as the fields of an OTLP message."""

from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]
"""A row by its columns; times are nanoseconds."""


def fill(attributes: Any, said: Any) -> None:
    """Add a map's pairs to an OTLP message's attributes, as strings."""
    pairs: Iterable[tuple[str, str]] = said.items() if isinstance(said, dict) else said
    for key, value in pairs:
        attributes.add(key=key).value.string_value = value


def id_of(text: str) -> bytes:
    """Give an id that is hexadecimal digits; any other is none."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def zipped(row: Row, group: str, *names: str) -> Iterable[tuple[Any, ...]]:
    """Give the items of a nested column, each with its fields in the order of `names`."""
    return zip(*(row[f"{group}.{name}"] for name in names), strict=True)
