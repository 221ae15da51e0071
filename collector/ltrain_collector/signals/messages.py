"""Count the messages in a serialized request before it is decoded.

An empty span is two bytes on the wire and two hundred in memory, so 64 MiB could become 6 GiB.
"""

from functools import lru_cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from ltrain_collector.errors import TooLarge

MAX_MESSAGES = 1 << 21
"""Limit of messages in one request: a span with a million attributes fits."""

UNCOUNTED_BYTES = 2 * MAX_MESSAGES
"""Bodies up to this size cannot contain more messages, so they are not counted."""


def check_count(body: bytes, descriptor: Descriptor) -> None:
    """Check the number of messages in `body`.

    Raises:
        TooLarge: it contains more than `MAX_MESSAGES`.
    """
    if len(body) <= UNCOUNTED_BYTES:
        return
    try:
        count = _count_messages(body, _message_fields(descriptor))
    except IndexError:  # it ends within a field: the decoder has a better error
        return
    if count > MAX_MESSAGES:
        raise TooLarge(
            f"The request contains more than {MAX_MESSAGES} messages (spans, attributes, events "
            "and so on). Send less at a time."
        )


def _count_messages(body: bytes, fields: dict[int, Any]) -> int:
    """Count messages, up to one more than allowed; tags of groups are skipped."""
    count = 0
    parts = [(0, len(body), fields)]
    while parts:
        at, end, fields = parts.pop()
        while at < end:
            tag = body[at]
            at += 1
            if tag > 127:
                tag, at = _varint(body, at - 1)
            kind = tag & 7
            if kind == 2:
                size = body[at]
                at += 1
                if size > 127:
                    size, at = _varint(body, at - 1)
                if tag in fields:
                    count += 1
                    if count > MAX_MESSAGES:
                        return count
                    if size:
                        parts.append((at, at + size, _message_fields(fields[tag])))
                at += size
            elif kind == 0:
                while body[at] > 127:
                    at += 1
                at += 1
            elif kind == 1:
                at += 8
            elif kind == 5:
                at += 4
    return count


def _varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while body[at] > 127:
        number |= (body[at] & 127) << shift
        shift += 7
        at += 1
    return number | body[at] << shift, at + 1


@lru_cache(maxsize=256)
def _message_fields(descriptor: Descriptor) -> dict[int, Any]:
    """Return the fields that contain messages, by tag."""
    return {
        field.number << 3 | 2: field.message_type
        for field in descriptor.fields
        if field.type == FieldDescriptor.TYPE_MESSAGE
    }
