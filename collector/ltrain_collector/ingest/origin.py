"""The sender of each resource's records, as the attribute `ltrain.sender` of the resource.

Only the store writes it: what a request brings under this name, anywhere, is removed.
"""

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from ltrain_collector.ingest.values import text
from ltrain_collector.sender import Sender
from ltrain_instrument.attributes import SENDER

MARK = SENDER.encode()
"""What a serialised request holds wherever it names the attribute."""

OVER_OTLP = frozenset({Sender.AGENT, Sender.INGEST, Sender.SERVICE, Sender.ADMIN, Sender.NONE})
"""The senders of requests, none of which is the collector itself."""


def record(request: Message, sender: Sender, *, replace: bool = True) -> None:
    """Write `sender` on every resource of an OTLP request.

    Args:
        replace: remove what the resource carries; else its own word stays.
    """
    given = KeyValue(key=SENDER, value=AnyValue(string_value=sender))
    for owner in _resources(request):
        attributes = owner.resource.attributes
        if replace:
            _remove(attributes)
        elif of(attributes):
            continue
        attributes.append(given)


def forget(request: Message) -> None:
    """Remove the attribute from everything in a request: scopes, records, events, points, links."""
    for field, value in request.ListFields():
        if field.message_type is None:
            continue
        if field.message_type is KeyValue.DESCRIPTOR:
            _remove(value)
        elif field.message_type is not AnyValue.DESCRIPTOR:
            for one in [value] if isinstance(value, Message) else value:
                forget(one)


def of(attributes: Iterable[KeyValue]) -> str:
    """Return the sender that a resource's attributes name; '' where they name none."""
    return next((text(one.value) for one in attributes if one.key == SENDER), "")


def _resources(request: Any) -> Iterable[Any]:
    """Return the parts of a request that have a resource, whatever its signal."""
    return getattr(request, request.DESCRIPTOR.fields[0].name)  # type: ignore[no-any-return]


def _remove(attributes: Any) -> None:
    for index in reversed([at for at, one in enumerate(attributes) if one.key == SENDER]):
        del attributes[index]
