"""OTLP responses: messages in protobuf or JSON, and error statuses."""

from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from ltrain_collector.errors import OtlpError
from ltrain_collector.ingest.intake import RETRY_AFTER


def serialize_message(message: Message, as_json: bool) -> bytes:
    if as_json:
        return str(json_format.MessageToJson(message, indent=None)).encode()
    return bytes(message.SerializeToString())


def rpc_status(code: int, message: str, retryable: bool = False) -> Message:
    """Return a `google.rpc.Status`; if `retryable`, with the delay until a retry."""
    status = status_pb2.Status(code=code, message=message)
    if retryable:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.seconds = RETRY_AFTER
        status.details.add().Pack(retry)
    return status


def error_status(error: OtlpError) -> Message:
    """Return the status of a request that was not stored."""
    return rpc_status(error.code, str(error), error.retryable)
