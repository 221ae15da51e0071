"""Counts the messages within a serialised one, before memory is spent on them.

An empty span is two bytes on the wire and two hundred in memory, so that 64 MiB could become 6 GiB.
"""

from functools import lru_cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from ltrain_collector.ingest.refusals import TooLarge

MESSAGES = 1 << 21
"""In one request: a span with a million attributes fits."""

CERTAIN = 2 * MESSAGES
"""Bytes that cannot hold more messages than that."""


def check(body: bytes, descriptor: Descriptor) -> None:
    """Say whether `body` may be decoded.

    Raises:
        TooLarge: when it holds too many messages.
    """
    if len(body) <= CERTAIN:
        return
    try:
        found = _count(body, _messages(descriptor))
    except IndexError:  # it ends within a field, which the decoder says better
        return
    if found > MESSAGES:
        raise TooLarge(
            f"The request holds more than {MESSAGES} spans, attributes, events and the like. "
            "Send less at a time."
        )


def _count(body: bytes, fields: dict[int, Any]) -> int:
    """Count up to a little more than allowed; groups are read as if they were not there."""
    found = 0
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
                    found += 1
                    if found > MESSAGES:
                        return found
                    if size:
                        parts.append((at, at + size, _messages(fields[tag])))
                at += size
            elif kind == 0:
                while body[at] > 127:
                    at += 1
                at += 1
            elif kind == 1:
                at += 8
            elif kind == 5:
                at += 4
    return found


def _varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while body[at] > 127:
        number |= (body[at] & 127) << shift
        shift += 7
        at += 1
    return number | body[at] << shift, at + 1


@lru_cache(maxsize=256)
def _messages(descriptor: Descriptor) -> dict[int, Any]:
    """The fields that are messages, by tag."""
    return {
        field.number << 3 | 2: field.message_type
        for field in descriptor.fields
        if field.type == FieldDescriptor.TYPE_MESSAGE
    }
