"""Parts of messages on a page: only the bytes of an image are an image, and JSON is indented."""

from typing import Any

import pytest

from ltrain_transforms.show.pages.excerpt import MAX_CHARACTERS, MAX_IMAGE, excerpt, part_excerpt
from ltrain_transforms.traces import MessagePart

PIXEL = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
URL = f"data:image/gif;base64,{PIXEL}"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "blob", "mime_type": "image/gif", "content": PIXEL},
        {"type": "uri", "modality": "image", "uri": URL},
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "input_image", "image_url": URL},
    ],
)
def test_an_image_in_the_trace_is_shown(part: dict[str, Any]) -> None:
    assert part_excerpt(MessagePart(part["type"], part)).image == URL


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://evil.example/a.png"}},
        {"type": "blob", "mime_type": "image/svg+xml", "content": PIXEL},
        {"type": "blob", "mime_type": "image/gif", "content": '" onerror=alert(1)'},
        {"type": "blob", "mime_type": "image/gif\n", "content": PIXEL},
        {"type": "uri", "uri": f"{URL}\n<script>"},
        {"type": "uri", "uri": ["data:"]},
        {"type": "blob", "mime_type": "image/gif", "content": "A" * MAX_IMAGE},
    ],
)
def test_anything_else_is_text(part: dict[str, Any]) -> None:
    found = part_excerpt(MessagePart(part["type"], part))
    assert found.image == "" and found.text


def test_json_is_indented_and_text_is_not_changed() -> None:
    assert excerpt("", '{"a":[1]}').text == '{\n  "a": [\n    1\n  ]\n}'
    for text in ("{not JSON}", "12", '"a"', "[" * 5000, "{'a': 1}", ""):
        assert (excerpt("", text).text, excerpt("", text).is_code) == (text, False)
    long = f'["{"x" * MAX_CHARACTERS}"]'
    assert excerpt("", long).more == 4 and not excerpt("", long).is_code


def test_arguments_of_a_tool_keep_their_line_breaks() -> None:
    fields = {"name": "run", "arguments": '{"code": "a\\nb", "limit": 2}'}
    found = part_excerpt(MessagePart("tool_call", fields))
    assert (found.label, found.text) == ("→ run", "code: a\nb\nlimit: 2")
