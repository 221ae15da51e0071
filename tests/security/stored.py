"""Convert hostile traces to one OTLP request, to send them through ingest and a real store."""

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.security.hostile import Trace
from tests.transforms.made import Row


def request(traces: list[Trace]) -> bytes:
    """Serialize the traces, each as a rollout."""
    made = ExportTraceServiceRequest()
    for number, one in enumerate(traces):
        for row in one.named(number):
            resource = made.resource_spans.add()
            _fill(resource.resource, {"service.instance.id": row["process"] or ""})
            scoped = resource.scope_spans.add()
            scoped.scope.name = row["scope"]
            _encode(scoped.spans.add(), row, number)
    return bytes(made.SerializeToString())


def _encode(into: Any, row: Row, number: int) -> None:
    into.name = row["name"]
    into.trace_id = number.to_bytes(15, "big") + b"\x01"
    into.span_id = _id(row["span_id"])
    into.parent_span_id = _id(row["parent_id"]) if row["parent_id"] else b""
    into.start_time_unix_nano = row["start"] % (1 << 64)
    into.end_time_unix_nano = row["end"] % (1 << 64)
    identity = {
        "ltrain.run.id": "r",
        "ltrain.rollout.id": f"ro{number}",
        "ltrain.attempt.id": "1",
        "ltrain.mode": "train",
        "ltrain.task.id": row["task_id"],
        "ltrain.wave": str(row["wave"]),
        "ltrain.rollout.outcome": row["outcome"] or "",
        "ltrain.rollout.spans": str(row["reported"]),
    }
    _fill(into, {**identity, **row["attributes"]})


def _id(name: str) -> bytes:
    return name.encode().rjust(8, b"\x01")[-8:]


def _fill(into: Any, fields: dict[str, str]) -> None:
    for name, value in fields.items():
        into.attributes.add(key=name).value.string_value = value
