"""`ltrain import`: files of telemetry into the store; the rest is counted with its reasons."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ltrain_collector import schema
from ltrain_collector.errors import BadRequest
from ltrain_collector.ingest.traces import Rows, encode
from ltrain_collector.store import Store
from ltrain_collector.transfer import lightning, otlp_json
from ltrain_collector.transfer.documents import Document, documents

BATCH = 16 << 20
"""Bytes of rows that are inserted at a time."""

PLACES = 20
"""Unreadable places that are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What files hold of one signal."""

    key: str
    """How its JSON begins."""
    message: Any
    first: Callable[[Any], bool]
    """Says whether a message is of this signal, which protobuf alone does not tell."""
    encode: Callable[[bytes], Rows]
    into: str
    """Table and columns, in the order of the rows."""


def _is_trace(message: Any) -> bool:
    spans = (s for r in message.resource_spans for scoped in r.scope_spans for s in scoped.spans)
    first = next(spans, None)
    return first is None or len(first.trace_id) == 16


KINDS = (
    Kind(
        "resourceSpans",
        ExportTraceServiceRequest,
        _is_trace,
        encode,
        f"{schema.TRACES} ({schema.COLUMN_LIST})",
    ),
)
"""The signals that are read."""


@dataclass(slots=True)
class Counts:
    """What became of the records that were read."""

    files: int = 0
    records: int = 0
    stored: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    places: list[str] = field(default_factory=list)
    """Of the first that are unreadable, with the reason."""

    def fault(self, place: str, why: str) -> None:
        self.unreadable += 1
        if len(self.places) < PLACES:
            self.places.append(f"{place}: {why}")


def files_of(path: Path) -> list[Path]:
    """Give the files of a folder, rotated ones too, hidden ones not; or the file itself.

    Raises:
        BadRequest: when there is none.
    """
    if path.is_file():
        return [path]
    found = sorted(
        each
        for each in path.rglob("*")
        if each.is_file() and not any(part.startswith(".") for part in each.relative_to(path).parts)
    )
    if not found:
        what = "is empty" if path.is_dir() else "does not exist"
        raise BadRequest(
            f"{path} {what}. Name a file of OTLP (JSON, protobuf; gzip, zstd) or a folder of them."
        )
    return found


def take_in(store: Store, paths: list[Path], seen: Callable[[Path], None]) -> Counts:
    """Store all records of the files; `seen` is told of each file before it is read."""
    counts = Counts()
    waiting: dict[str, list[Rows]] = {}
    size = 0
    for path in paths:
        seen(path)
        counts.files += 1
        for document in documents(path):
            for kind, rows in _rows(document, counts):
                counts.records += rows.count + rows.rejected
                if rows.rejected:
                    counts.rejected[rows.reason] += rows.rejected
                waiting.setdefault(kind.into, []).append(rows)
                size += len(rows.payload)
            if size > BATCH:
                counts.stored += _insert(store, waiting)
                waiting, size = {}, 0
    counts.stored += _insert(store, waiting)
    return counts


def _rows(document: Document, counts: Counts) -> Iterator[tuple[Kind, Rows]]:
    try:
        if document.fault:
            raise BadRequest(document.fault)
        kind, body = _request(document)
        yield kind, kind.encode(body)
    except BadRequest as error:
        counts.fault(document.place, str(error))


def _request(document: Document) -> tuple[Kind, bytes]:
    if document.json is None:
        return _of_bytes(document.protobuf)
    if lightning.is_span(document.json):
        return KINDS[0], bytes(lightning.request(document.json).SerializeToString())
    for kind in KINDS:
        if isinstance(document.json, dict) and kind.key in document.json:
            message = otlp_json.parse(document.json, kind.message())
            return kind, bytes(message.SerializeToString())
    keys = ", ".join(list(document.json)[:3]) if isinstance(document.json, dict) else "no object"
    raise BadRequest(f"it has none of {', '.join(kind.key for kind in KINDS)} (but {keys})")


def _of_bytes(body: bytes) -> tuple[Kind, bytes]:
    for kind in KINDS:
        try:
            if kind.first(kind.message.FromString(body)):
                return kind, body
        except DecodeError:
            continue
    raise BadRequest("it is neither OTLP JSON nor its protobuf")


def _insert(store: Store, waiting: dict[str, list[Rows]]) -> int:
    stored = 0
    for into, batch in waiting.items():
        if count := sum(rows.count for rows in batch):
            store.insert_rows(into, b"".join(rows.payload for rows in batch))
            stored += count
    return stored
