"""Parses a JSON response and replaces fields in its text.

All other bytes stay unchanged: spaces, escapes and the notation of numbers.
"""

import json
import re
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
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
        if parser.skip(end) != len(text):
            raise ValueError("there is text after the JSON object")
    except (StopIteration, IndexError) as error:
        raise ValueError("it is not a JSON object") from error
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

    def object(self, position: int, *, is_root: bool) -> tuple[dict[str, Any], int]:
        text = self._text
        result: dict[str, Any] = {}
        position = self._skip_past("{", position)
        if text[position] == "}":
            return result, position + 1
        while True:
            name, position = scanstring(text, self._expect_character('"', position), True)
            position = self._skip_past(":", self.skip(position))
            if is_root and name == "choices" and text[position] == "[":
                result[name], end = self._objects(position)
            else:
                result[name], end = self._value(name, position)
            position = self.skip(end)
            if text[position] == "}":
                return result, position + 1
            position = self._skip_past(",", position)

    def _objects(self, position: int) -> tuple[list[dict[str, Any]], int]:
        result: list[dict[str, Any]] = []
        position = self._skip_past("[", position)
        if self._text[position] == "]":
            return result, position + 1
        while True:
            item, position = self.object(position, is_root=False)
            result.append(item)
            position = self.skip(position)
            if self._text[position] == "]":
                return result, position + 1
            position = self._skip_past(",", position)

    def _value(self, name: str, position: int) -> tuple[Any, int]:
        value, end = _scan(self._text, position)
        if value is not None and name in self._replacements:
            self._edits.append((position, end, self._replacements[name]))
        return value, end

    def _expect_character(self, character: str, position: int) -> int:
        if self._text[position] != character:
            raise ValueError(f"there is no {character} at character {position}")
        return position + 1

    def _skip_past(self, character: str, position: int) -> int:
        return self.skip(self._expect_character(character, position))

    def edited(self) -> str:
        if not self._edits:
            return self._text
        pieces: list[str] = []
        last = 0
        for start, end, new in self._edits:
            pieces += (self._text[last:start], new)
            last = end
        return "".join((*pieces, self._text[last:]))
