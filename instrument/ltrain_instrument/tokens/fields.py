"""Parses a JSON response and replaces fields in its text.

All other bytes stay unchanged: spaces, escapes and the notation of numbers. Encoders (`json.dumps`,
orjson) would write them anew, so the position of each value is needed, which `raw_decode` returns.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_decode_value = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"[ \t\n\r]*")


def parse_and_replace(text: str, replacements: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Return the JSON object in `text`, and the text with some fields replaced.

    `replacements` maps names of fields, in the object and in each of its `choices`, to their new
    JSON text. A field that is null or missing stays so.

    Raises:
        ValueError: when the text is not a JSON object.
    """
    parser = _Parser(text, replacements)
    try:
        payload, end = parser.object(parser.skip(0), is_root=True)
    except IndexError as error:
        raise ValueError("it is not a JSON object") from error
    if end != len(text):
        raise ValueError("there is text after the JSON object")
    return payload, parser.edited()


class _Parser:
    def __init__(self, text: str, replacements: Mapping[str, str]) -> None:
        self._text, self._replacements = text, replacements
        self._edits: list[tuple[int, int, str]] = []

    def skip(self, position: int) -> int:
        """Return the position of the next character that is not white space."""
        if self._text[position : position + 1] > " ":
            return position
        return _SPACE.match(self._text, position).end()  # type: ignore[union-attr]

    def object(self, position: int, *, is_root: bool = False) -> tuple[dict[str, Any], int]:
        """Parse an object and note the positions of the fields to replace."""
        result: dict[str, Any] = {}

        def parse_field(position: int) -> int:
            self._expect('"', position)
            name, end = _decode_value(self._text, position)
            position = self._skip_past(":", self.skip(end))
            if is_root and name == "choices" and self._text[position] == "[":
                result[name], end = self._objects(position)
            else:
                result[name], end = self._value(name, position)
            return self.skip(end)

        return result, self._items("{}", position, parse_field)

    def _objects(self, position: int) -> tuple[list[dict[str, Any]], int]:
        result: list[dict[str, Any]] = []

        def parse_item(position: int) -> int:
            item, end = self.object(position)
            result.append(item)
            return end

        return result, self._items("[]", position, parse_item)

    def _items(self, brackets: str, position: int, parse_item: Callable[[int], int]) -> int:
        """Parse what is between two brackets, separated by commas."""
        position = self._skip_past(brackets[0], position)
        if self._text[position] != brackets[1]:
            position = parse_item(position)
            while self._text[position] != brackets[1]:
                position = parse_item(self._skip_past(",", position))
        return self.skip(position + 1)

    def _value(self, name: str, position: int) -> tuple[Any, int]:
        value, end = _decode_value(self._text, position)
        if value is not None and name in self._replacements:
            self._edits.append((position, end, self._replacements[name]))
        return value, end

    def _expect(self, character: str, position: int) -> None:
        if self._text[position] != character:
            raise ValueError(f"there is no {character} at character {position}")

    def _skip_past(self, character: str, position: int) -> int:
        self._expect(character, position)
        return self.skip(position + 1)

    def edited(self) -> str:
        """Return the text with the noted fields replaced."""
        if not self._edits:
            return self._text
        pieces: list[str] = []
        last = 0
        for start, end, new in self._edits:
            pieces += (self._text[last:start], new)
            last = end
        return "".join((*pieces, self._text[last:]))
