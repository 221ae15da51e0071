"""OTLP in JSON, which is protobuf's JSON but for ids: they are hexadecimal."""

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from ltrain_collector.errors import BadRequest

IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")

M = TypeVar("M", bound=Message)


def parse(document: dict[str, Any], message: M) -> M:
    """Fill `message` from a document; an id that is not hexadecimal becomes empty.

    Raises:
        BadRequest: when a value is not of its field's type.
    """
    try:
        ParseDict(_with_ids(document, _from_hex), message, ignore_unknown_fields=True)
    except (ParseError, RecursionError) as error:
        raise BadRequest(f"It is not OTLP JSON: {error}") from error
    return message


def plain(message: Message) -> dict[str, Any]:
    """Give a message as the Collector writes it in JSON."""
    given = MessageToDict(message, use_integers_for_enums=True)
    return dict(_with_ids(given, _to_hex))


def _with_ids(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {
            key: change(each)
            if key in IDS
            else each
            if key == "attributes"
            else _with_ids(each, change)
            for key, each in value.items()
        }
    return [_with_ids(each, change) for each in value] if isinstance(value, list) else value


def _from_hex(value: Any) -> str:
    try:
        return b64encode(bytes.fromhex(value)).decode()
    except (TypeError, ValueError):
        return ""


def _to_hex(value: str) -> str:
    return b64decode(value).hex()
