"""The texts of a call as a page shows them: the beginning of each, JSON indented, images as images.

Texts of traces are not trusted. An image is shown only if the trace holds its bytes in a format
that browsers draw without running anything.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from ltrain_instrument.machine import visible
from ltrain_transforms.show.display_text import part_text
from ltrain_transforms.traces import REQUEST, RESULT, TEXT, MessagePart, parse_json, to_text

MAX_CHARACTERS = 20_000
"""Characters of a text that a page shows, with a note on how many more there are."""
MAX_IMAGE = 2_000_000
"""Characters of an image in base64 that a page shows."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
DATA_URL = re.compile(r"data:(image/[a-z]+);base64,([A-Za-z0-9+/]+={0,2})")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of a text, or an image."""

    label: str
    """The name of what it is; '' of the text of a message."""
    text: str
    more: int = 0
    """Number of characters that are left out."""
    is_code: bool = False
    """Whether the text is JSON or the arguments of a tool."""
    image: str = ""
    """The data URL of an image."""


def excerpt(label: str, text: str) -> Excerpt:
    """Return the first `MAX_CHARACTERS` of a text; a JSON object or list is indented."""
    indented = _indent(text)
    return _cut(label, text if indented is None else indented, is_code=indented is not None)


def part_excerpt(part: MessagePart) -> Excerpt:
    """Return a part of a message."""
    if part.type == TEXT:
        return excerpt("", part.text)
    if part.type == REQUEST:
        request = part.request
        return _cut(f"→ {request.name}", _arguments(request.parsed_arguments), is_code=True)
    if part.type == RESULT:
        return excerpt("", part.result.text)
    if image := _image_url(part):
        return Excerpt(visible(part.type), "", image=image)
    return excerpt(part.type, part_text(part))


def _cut(label: str, text: str, *, is_code: bool) -> Excerpt:
    more = max(len(text) - MAX_CHARACTERS, 0)
    return Excerpt(visible(label), visible(text[:MAX_CHARACTERS]), more, is_code)


def _indent(text: str) -> str | None:
    """Return a JSON object or list with a line for each value; None for another text."""
    if len(text) > MAX_CHARACTERS or not text.lstrip().startswith(("{", "[")):
        return None
    decoded = parse_json(text)
    if not isinstance(decoded, dict | list):
        return None
    return json.dumps(decoded, indent=2, ensure_ascii=False)


def _arguments(arguments: Any) -> str:
    """Return one line for each argument of a tool; a text as it is, with its line breaks."""
    if not isinstance(arguments, dict):
        return to_text(arguments)
    return "\n".join(f"{name}: {to_text(value)}" for name, value in arguments.items())


def _image_url(part: MessagePart) -> str:
    """Return the data URL of an image that the part holds; '' if it holds none."""
    fields = part.fields
    source = fields.get("image_url", fields.get("uri"))
    url = source.get("url") if isinstance(source, dict) else source
    kind, content = fields.get("mime_type"), fields.get("content")
    if isinstance(kind, str) and isinstance(content, str):
        url = f"data:{kind};base64,{content}"
    if not isinstance(url, str) or len(url) > MAX_IMAGE:
        return ""
    found = DATA_URL.fullmatch(url)
    return url if found is not None and found[1] in IMAGE_TYPES else ""
