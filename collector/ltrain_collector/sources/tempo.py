"""Tempo's JSON: OTLP with other names and ids in base64, `{"batches": […]}`, `{"trace": {…}}`."""

from base64 import b64decode
from collections.abc import Iterator
from typing import Any, ClassVar

from ltrain_collector.sources.spans import (
    RecordReader,
    Request,
)

IDS = {"traceId": 32, "spanId": 16, "parentSpanId": 16}
"""Fields with ids, and their hexadecimal digits."""
RESOURCES = {"batches", "resourceSpans"}
OLD_SCOPES, OLD_SCOPE = "instrumentationLibrarySpans", "instrumentationLibrary"


class TempoTrace(RecordReader):
    """Reads one file."""

    written_by: ClassVar[str] = "Tempo: traces in JSON"

    @classmethod
    def reads(cls, record: dict[str, Any]) -> bool:
        trace = record.get("trace")
        return "batches" in record or (isinstance(trace, dict) and bool(trace.keys() & RESOURCES))

    def add(self, record: dict[str, Any]) -> Iterator[Request]:
        trace = record.get("trace") or record
        resources = trace.get("resourceSpans") or trace.get("batches") or ()
        for resource in resources:
            scopes = resource.get("scopeSpans") or resource.get(OLD_SCOPES) or ()
            yield {
                "resourceSpans": [
                    {
                        "resource": resource.get("resource") or {},
                        "scopeSpans": [
                            {
                                "scope": scope.get("scope") or scope.get(OLD_SCOPE) or {},
                                "spans": list(map(_with_hex_ids, scope.get("spans") or ())),
                            }
                            for scope in scopes
                        ],
                    }
                ]
            }


def _with_hex_ids(record: dict[str, Any]) -> dict[str, Any]:
    """Return a span, or a link of one, with ids as OTLP's JSON has them."""
    ids = {name: _hex(record[name], digits) for name, digits in IDS.items() if record.get(name)}
    links = {"links": list(map(_with_hex_ids, record["links"]))} if record.get("links") else {}
    return {**record, **ids, **links}


def _hex(text: str, digits: int) -> str:
    return text if len(text) == digits else b64decode(text).hex().zfill(digits)
