"""Where records come from, as attributes of their resource: their sender, and who forwarded them.

Only the store sets `ltrain.sender`: an attribute of this name anywhere in a request is removed.
Collectors that forward a request add their ids to `ltrain.forwarded_by`.
"""

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from ltrain_collector.access import Sender
from ltrain_collector.signals.values import value_text
from ltrain_instrument.attributes import FORWARDED_BY, IMPORT_SOURCE, SENDER

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


def add_forwarder(request: Message, collector: str) -> None:
    """Add the id of a collector to those that forwarded each resource of a request."""
    for owner in _resources(request):
        attributes = owner.resource.attributes
        before = _text_of(attributes, FORWARDED_BY)
        _remove_from(attributes, FORWARDED_BY)
        text = f"{before},{collector}" if before else collector
        attributes.add(key=FORWARDED_BY).value.string_value = text


def remove_returned(request: Message, collector: str) -> bool:
    """Remove the resources that a collector itself forwarded; return whether there is any."""
    owners: Any = _resources(request)
    left = [
        owner
        for owner in owners
        if collector not in _text_of(owner.resource.attributes, FORWARDED_BY).split(",")
    ]
    if is_any := len(left) < len(owners):
        del owners[:]
        owners.extend(left)
    return is_any


def sender_of(attributes: Iterable[KeyValue]) -> str:
    """Return the sender in a resource's attributes, or ''."""
    return _text_of(attributes, SENDER)


def _text_of(attributes: Iterable[KeyValue], name: str) -> str:
    return next((value_text(one.value) for one in attributes if one.key == name), "")


def _resources(request: Any) -> Iterable[Any]:
    """Return the messages with a resource in a request of any signal."""
    return getattr(request, request.DESCRIPTOR.fields[0].name)  # type: ignore[no-any-return]


def _remove_from(attributes: Any, name: str = SENDER) -> None:
    for index in reversed([at for at, one in enumerate(attributes) if one.key == name]):
        del attributes[index]
