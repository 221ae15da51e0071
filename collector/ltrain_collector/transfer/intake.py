"""`ltrain import`: files of telemetry into the store; the rest is counted with its reasons."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from ltrain_collector import schema
from ltrain_collector.errors import BadRequest
from ltrain_collector.ingest import origin, otlp_json
from ltrain_collector.ingest.refusals import Refusal
from ltrain_collector.ingest.rows import Block, Rows
from ltrain_collector.ingest.signals import LOGS, METRICS, TRACES, Signal
from ltrain_collector.sender import Sender
from ltrain_collector.store import Store
from ltrain_collector.transfer import lightning
from ltrain_collector.transfer.documents import Document, documents

BATCH = 16 << 20
"""Bytes of rows that are inserted at a time."""

STEP = 4 << 20
"""Bytes of a file between two words on how far it is."""

PLACES = 20
"""Unreadable places that are named; the others are counted."""


KEYS = {"resourceSpans": TRACES, "resourceLogs": LOGS, "resourceMetrics": METRICS}
"""How the JSON of each signal begins."""


def _is_traces(message: Any) -> bool:
    spans = (s for r in message.resource_spans for scoped in r.scope_spans for s in scoped.spans)
    return all(one.start_time_unix_nano for one in islice(spans, 1))


def _is_logs(message: Any) -> bool:
    records = (
        one for r in message.resource_logs for scoped in r.scope_logs for one in scoped.log_records
    )
    return all(_is_record(one) for one in islice(records, 1))


def _is_record(one: LogRecord) -> bool:
    if one.time_unix_nano or one.observed_time_unix_nano:
        return True
    ids = len(one.trace_id) in (0, 16) and len(one.span_id) in (0, 8)
    return ids and not len(UnknownFieldSet(one))


def _is_metrics(message: Any) -> bool:
    metrics = (one for r in message.resource_metrics for s in r.scope_metrics for one in s.metrics)
    return all(one.WhichOneof("data") for one in islice(metrics, 1))


LOOKS: dict[Signal, Callable[[Any], bool]] = {
    TRACES: _is_traces,
    LOGS: _is_logs,
    METRICS: _is_metrics,
}
"""Says of a message's first record whether it is of this signal, which protobuf does not tell."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an import is."""

    path: Path
    read: int
    """Bytes of the file."""
    size: int


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


def take_in(
    store: Store, paths: list[Path], seen: Callable[[Progress], None], trusted: bool = False
) -> Counts:
    """Store all records of the files.

    Args:
        seen: is called for each file, and for each STEP of it.
        trusted: keep the senders that the files name; else all are of `import`.
    """
    counts = Counts()
    waiting: defaultdict[str, list[Block]] = defaultdict(list)
    size = 0
    for path in paths:
        counts.files += 1
        for document in _followed(path, seen):
            rows = _rows(document, counts, trusted)
            for table, block in rows.blocks.items():
                waiting[table].append(block)
            size += rows.size
            if size > BATCH:
                counts.stored += _insert(store, waiting)
                waiting.clear()
                size = 0
    counts.stored += _insert(store, waiting)
    return counts


def _followed(path: Path, seen: Callable[[Progress], None]) -> Iterator[Document]:
    size, told = path.stat().st_size, 0
    seen(Progress(path, 0, size))
    for document in documents(path):
        yield document
        if document.read >= told + STEP:
            told = document.read
            seen(Progress(path, told, size))


def _rows(document: Document, counts: Counts, trusted: bool) -> Rows:
    try:
        if document.fault:
            raise BadRequest(document.fault)
        signal, message = _request(document)
        if not trusted:
            origin.forget(message)
        origin.record(message, Sender.IMPORT, replace=not trusted)
        rows = signal.encode(message, None)
    except (BadRequest, Refusal) as error:
        counts.fault(document.place, str(error))
        return Rows({})
    except RecursionError:
        counts.fault(document.place, "it is nested too deeply")
        return Rows({})
    counts.records += rows.count + rows.rejected
    if rows.rejected:
        counts.rejected[rows.reason] += rows.rejected
    return rows


def _request(document: Document) -> tuple[Signal, Any]:
    if document.json is None:
        return _of_bytes(document.protobuf)
    if lightning.is_span(document.json):
        return TRACES, lightning.request(document.json)
    for key, signal in KEYS.items():
        if isinstance(document.json, dict) and key in document.json:
            return signal, otlp_json.message_of(document.json, signal.request)
    keys = ", ".join(list(document.json)[:3]) if isinstance(document.json, dict) else "no object"
    raise BadRequest(f"it has none of {', '.join(KEYS)} (but {keys})")


def _of_bytes(body: bytes) -> tuple[Signal, Any]:
    for signal, looks in LOOKS.items():
        try:
            message = signal.request.FromString(body)
        except DecodeError:
            continue
        if looks(message):
            return signal, message
    raise BadRequest("it is neither OTLP JSON nor its protobuf")


def _insert(store: Store, waiting: dict[str, list[Block]]) -> int:
    for table, blocks in waiting.items():
        store.insert_rows(schema.into(table), b"".join(block.payload for block in blocks))
    return sum(block.rows for blocks in waiting.values() for block in blocks)
