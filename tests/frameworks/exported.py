"""Compares every exported span of an agent, completely, with a file.

`agents/seeded.py` seeds ids and times of spans; other ids are numbered by their first occurrence,
and the server's port is `PORT`. `EXPORTED=write make test-frameworks` rewrites the files.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

FOLDER = Path(__file__).parent / "exported"
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def check_exported_spans(name: str, requests: list[bytes], port: int) -> None:
    """Compare the spans of these OTLP requests with those in `exported/NAME.json`."""
    spans = [span for request in requests for span in _spans(request)]
    text = json.dumps(sorted(spans, key=lambda span: span["span"]), indent=1, ensure_ascii=False)
    text = text.replace(f": {port}", ': "PORT"').replace(str(port), "PORT")
    for number, each in enumerate(dict.fromkeys(UUID.findall(text)), 1):
        text = text.replace(each, f"uuid-{number}")
    path = FOLDER / f"{name}.json"
    if os.environ.get("EXPORTED") == "write":
        path.write_text(text + "\n")
    assert json.loads(text) == json.loads(path.read_text())


def _spans(request: bytes) -> list[dict[str, Any]]:
    spans = []
    for resource in ExportTraceServiceRequest.FromString(request).resource_spans:
        for scope in resource.scope_spans:
            spans += [_span(scope.scope.name, span) for span in scope.spans]
    return spans


def _span(scope: str, span: Span) -> dict[str, Any]:
    return {
        "span": int.from_bytes(span.span_id),
        "parent": int.from_bytes(span.parent_span_id),
        "trace": int.from_bytes(span.trace_id),
        "name": span.name,
        "kind": Span.SpanKind.Name(span.kind),
        "scope": scope,
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "status": Status.StatusCode.Name(span.status.code),
        "attributes": {each.key: _value(each.value) for each in span.attributes},
        "events": [event.name for event in span.events],
        "links": [int.from_bytes(link.span_id) for link in span.links],
    }


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    if kind == "kvlist_value":
        return {each.key: _value(each.value) for each in value.kvlist_value.values}
    return getattr(value, kind) if kind else None
