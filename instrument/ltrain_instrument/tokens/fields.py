"""The fields of a JSON answer: read, and replaced where they stand.

What is not replaced keeps its bytes: spaces, escapes, the way that numbers are written.
"""

import json
import re
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_SPACE = re.compile(r"[ \t\n\r]*")


def read(text: str, instead: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Give the JSON object that `text` is, and the text with some fields replaced.

    `instead` has the new JSON text of a field by its name, in the object and in each of its
    `choices`. A field that is null, or is not there, stays so.

    Raises:
        ValueError: when it is not a JSON object.
    """
    reader = _Reader(text, instead)
    try:
        payload, end = reader.object(reader.skip(0), outer=True)
        if reader.skip(end) != len(text):
            raise ValueError("there is text after the JSON object")
    except (StopIteration, IndexError) as error:
        raise ValueError("it is not a JSON object") from error
    return payload, reader.edited()


class _Reader:
    def __init__(self, text: str, instead: Mapping[str, str]) -> None:
        self._text, self._instead = text, instead
        self._edits: list[tuple[int, int, str]] = []

    def skip(self, at: int) -> int:
        """Give the place of the next character that is no white space."""
        return at if self._text[at : at + 1] > " " else _SPACE.match(self._text, at).end()  # type: ignore[union-attr]

    def object(self, at: int, *, outer: bool) -> tuple[dict[str, Any], int]:
        text = self._text
        found: dict[str, Any] = {}
        at = self._expect("{", at)
        if text[at] == "}":
            return found, at + 1
        while True:
            name, at = scanstring(text, self._only('"', at), True)
            at = self._expect(":", self.skip(at))
            if outer and name == "choices" and text[at] == "[":
                found[name], end = self._objects(at)
            else:
                found[name], end = self._value(name, at)
            at = self.skip(end)
            if text[at] == "}":
                return found, at + 1
            at = self._expect(",", at)

    def _objects(self, at: int) -> tuple[list[dict[str, Any]], int]:
        found: list[dict[str, Any]] = []
        at = self._expect("[", at)
        if self._text[at] == "]":
            return found, at + 1
        while True:
            one, at = self.object(at, outer=False)
            found.append(one)
            at = self.skip(at)
            if self._text[at] == "]":
                return found, at + 1
            at = self._expect(",", at)

    def _value(self, name: str, at: int) -> tuple[Any, int]:
        value, end = _scan(self._text, at)
        if value is not None and name in self._instead:
            self._edits.append((at, end, self._instead[name]))
        return value, end

    def _only(self, mark: str, at: int) -> int:
        if self._text[at] != mark:
            raise ValueError(f"there is no {mark} at character {at}")
        return at + 1

    def _expect(self, mark: str, at: int) -> int:
        return self.skip(self._only(mark, at))

    def edited(self) -> str:
        if not self._edits:
            return self._text
        pieces: list[str] = []
        last = 0
        for start, end, new in self._edits:
            pieces += (self._text[last:start], new)
            last = end
        return "".join((*pieces, self._text[last:]))
