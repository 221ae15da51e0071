"""Messages as a client reads them: protobuf or JSON; and what a refusal says."""

from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from ltrain_collector.ingest.intake import READY
from ltrain_collector.ingest.refusals import Refusal


def serialised(message: Message, as_json: bool) -> bytes:
    if as_json:
        return str(json_format.MessageToJson(message, indent=None)).encode()
    return bytes(message.SerializeToString())


def status_of(code: int, message: str, again: bool = False) -> Message:
    """Give a `google.rpc.Status`; `again`: with the time at which to try again."""
    status = status_pb2.Status(code=code, message=message)
    if again:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.seconds = READY
        status.details.add().Pack(retry)
    return status


def refused(error: Refusal) -> Message:
    """Give what a client hears of a request that was not taken."""
    return status_of(error.code, str(error), error.again)
