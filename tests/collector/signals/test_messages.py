from collections.abc import Callable

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ltrain_collector.errors import TooLarge
from ltrain_collector.signals import signal

REQUEST = ExportTraceServiceRequest.DESCRIPTOR


def counted(body: bytes) -> int:
    return signal._count_messages(body, signal._message_fields(REQUEST))


def test_every_message_is_counted(request_of: Callable[..., bytes]) -> None:
    # resource spans, resource, its attribute and value, scope spans, scope; each span, its
    # attribute and value
    assert counted(request_of((1, 1), (1, 2), k="v" * 200)) == 6 + 2 * 3
    assert counted(b"") == 0


def test_a_group_hides_nothing(request_of: Callable[..., bytes]) -> None:
    body = request_of((1, 1))
    assert counted(b"\x0b\x0c" + body) == counted(b"\x0b" + body + b"\x0c") == counted(body)


def test_too_many_messages_are_refused(
    monkeypatch: pytest.MonkeyPatch, request_of: Callable[..., bytes]
) -> None:
    monkeypatch.setattr(signal, "UNCOUNTED_BYTES", 10)
    monkeypatch.setattr(signal, "MAX_MESSAGES", 7)
    signal.check_count(request_of((1, 1)), REQUEST)
    with pytest.raises(TooLarge, match="more than 7 messages"):
        signal.check_count(request_of((1, 1), (1, 2)), REQUEST)


def test_what_is_cut_off_is_left_to_the_decoder(
    monkeypatch: pytest.MonkeyPatch, request_of: Callable[..., bytes]
) -> None:
    monkeypatch.setattr(signal, "UNCOUNTED_BYTES", 10)
    signal.check_count(request_of((1, 1))[:-40] + b"\x0a", REQUEST)
