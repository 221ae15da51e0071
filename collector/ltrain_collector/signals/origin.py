"""The sender of records, stored as the attribute `ltrain.sender` of their resource.

Only the store sets it: an attribute of this name anywhere in a request is removed.
"""

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from ltrain_collector.access import Sender
from ltrain_collector.signals.values import value_text
from ltrain_instrument.attributes import IMPORT_SOURCE, SENDER

SENDER_BYTES = SENDER.encode()
"""The bytes of the attribute's name in a serialized request."""

OVER_OTLP = frozenset({Sender.AGENT, Sender.INGEST, Sender.SERVICE, Sender.ADMIN, Sender.NONE})
"""The senders of OTLP requests; none of them is the collector itself."""


def set_sender(request: Message, sender: Sender, *, replace: bool = True) -> None:
    """Set `sender` on every resource of an OTLP request.

    Args:
        replace: replace a sender that the resource already has; otherwise it stays.
    """
    attribute = KeyValue(key=SENDER, value=AnyValue(string_value=sender))
    for owner in _resources(request):
        attributes = owner.resource.attributes
        if replace:
            _remove_from(attributes)
        elif sender_of(attributes):
            continue
        attributes.append(attribute)


def remove_resource_sender(request: Message) -> None:
    """Remove what `set_sender` has set."""
    for owner in _resources(request):
        _remove_from(owner.resource.attributes)


def set_source(request: Message, source: str) -> None:
    """Set the server from which records were imported on every resource of an OTLP request."""
    for owner in _resources(request):
        owner.resource.attributes.add(key=IMPORT_SOURCE).value.string_value = source


def remove_sender(request: Message) -> None:
    """Remove the attribute from all of a request: resources, scopes, records, events, links."""
    for field, value in request.ListFields():
        if field.message_type is None:
            continue
        if field.message_type is KeyValue.DESCRIPTOR:
            _remove_from(value)
        elif field.message_type is not AnyValue.DESCRIPTOR:
            for one in [value] if isinstance(value, Message) else value:
                remove_sender(one)


def sender_of(attributes: Iterable[KeyValue]) -> str:
    """Return the sender in a resource's attributes, or ''."""
    return next((value_text(one.value) for one in attributes if one.key == SENDER), "")


def _resources(request: Any) -> Iterable[Any]:
    """Return the messages with a resource in a request of any signal."""
    return getattr(request, request.DESCRIPTOR.fields[0].name)  # type: ignore[no-any-return]


def _remove_from(attributes: Any) -> None:
    for index in reversed([at for at, one in enumerate(attributes) if one.key == SENDER]):
        del attributes[index]
