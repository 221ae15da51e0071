"""The processor that writes spans to disk, and their encoding."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, Status, StatusCode

from ltrain_instrument.delivery.signal_gate import SignalGate
from ltrain_instrument.delivery.span_processor import SpanEncoder, SpoolSpanProcessor
from ltrain_instrument.delivery.spool import Spool

if TYPE_CHECKING:
    from tests.instrument.conftest import Sink


def finished(service: str) -> tuple[ReadableSpan, ...]:
    memory = InMemorySpanExporter()
    attributes = {"service.name": service, "service.instance.id": "parent's"}
    provider = TracerProvider(resource=Resource.create(attributes, schema_url="https://schema"))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    for scope, version in (("first", "1"), ("second", None)):
        tracer = provider.get_tracer(scope, version, schema_url="https://scope")
        with tracer.start_as_current_span("outer", attributes={"text": "x" * 300}) as outer:
            outer.add_event("event", {"a": [1, 2]})
            inner = tracer.start_span("inner", links=[Link(outer.get_span_context(), {"l": True})])
            inner.set_status(Status(StatusCode.ERROR, "why"))
            inner.end()
    return memory.get_finished_spans()


def test_a_request_of_one_span_equals_opentelemetrys_encoding() -> None:
    encoder = SpanEncoder()
    for span in [*finished("a"), *finished("b")] * 2:
        encoded = ExportTraceServiceRequest.FromString(encoder.encode_request(span))
        assert encoded == encode_spans([span])


@pytest.mark.parametrize("size", [0, 1, 127, 128, 64 << 10, 3_000_000])
def test_attributes_are_encoded_as_opentelemetry_encodes_them(size: int) -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    span = provider.get_tracer("first").start_span("large", links=[])
    span.add_event("event", {"text": "x" * size})
    span.set_attributes({"n": size, "ids": ["x" * size], "w": "w" * size, "e": "\u00e9" * size})
    span.set_attributes({"yes": True, "no": False, "\u00e9": -size, "f": -1.5, "inf": float("inf")})
    span.set_attributes({"least": -(2**63), "most": 2**63 - 1, "x" * 200: 0, "numbers": [1, size]})
    span.end()
    (ended,) = memory.get_finished_spans()
    encoded = ExportTraceServiceRequest.FromString(SpanEncoder().encode_request(ended))
    assert in_order(encoded) == in_order(encode_spans([ended]))


def in_order(request: ExportTraceServiceRequest) -> ExportTraceServiceRequest:
    """Return a request of one span whose attributes are in the order of their names."""
    attributes = request.resource_spans[0].scope_spans[0].spans[0].attributes
    attributes.sort(key=lambda each: each.key)
    return request


def test_a_large_text_that_is_not_unicode_is_encoded() -> None:
    span = TracerProvider().get_tracer("first").start_span("s", attributes={"a": "\ud800" * 70_000})
    assert isinstance(span, ReadableSpan)
    encoded = ExportTraceServiceRequest.FromString(SpanEncoder().encode_request(span))
    (attribute,) = encoded.resource_spans[0].scope_spans[0].spans[0].attributes
    assert attribute.value.string_value == "?" * 70_000


def test_a_forked_child_has_an_instance_of_its_own() -> None:
    encoder = SpanEncoder()
    span = finished("a")[0]
    encoder.encode_request(span)
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, encoder.encode_request(span))
        os.kill(os.getpid(), 9)
    os.close(writing)
    with open(reading, "rb") as pipe:
        (group,) = ExportTraceServiceRequest.FromString(pipe.read()).resource_spans
    os.wait()
    instances = {
        pair.value.string_value
        for pair in group.resource.attributes
        if pair.key == "service.instance.id"
    }
    assert len(instances) == 1
    assert instances != {"parent's"}


class Interrupted(Spool):
    """A spool whose first write is interrupted, as by Ctrl-C."""

    interrupted = False

    def append(self, request: bytes) -> None:
        """Raise KeyboardInterrupt once."""
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        super().append(request)


def test_a_span_whose_write_is_interrupted_is_written_next(sink: Sink, tmp_path: Path) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SpoolSpanProcessor(Interrupted(tmp_path, sink.url)))
    tracer = provider.get_tracer("agent")
    with pytest.raises(KeyboardInterrupt):
        tracer.start_span("interrupted").end()
    assert provider.force_flush(60_000)
    provider.shutdown()
    assert [span.name for span in sink.spans] == ["interrupted"]


def test_a_strict_processor_raises_errors_of_the_disk(sink: Sink, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    processor = SpoolSpanProcessor(Spool(tmp_path / "file", sink.url), strict=True)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    with pytest.raises(NotADirectoryError):
        provider.get_tracer("gateway").start_span("call").end()
    assert processor.lost == 1
    provider.shutdown()


def test_a_gate_postpones_work_while_the_main_thread_is_inside() -> None:
    gate, results = SignalGate(), []
    gate.enter()
    gate.run_outside(lambda: results.append("postponed"))
    assert results == []
    gate.leave()
    assert results == ["postponed"]
    gate.run_outside(lambda: results.append("at once"))
    assert results == ["postponed", "at once"]
    inside, may_leave = threading.Event(), threading.Event()

    def hold_gate() -> None:
        gate.enter()
        inside.set()
        may_leave.wait(60)
        gate.leave()

    thread = threading.Thread(target=hold_gate)
    thread.start()
    inside.wait(60)
    gate.run_outside(lambda: results.append("beside another thread"))
    assert results[2:] == ["beside another thread"]
    may_leave.set()
    thread.join()
