"""Import files of telemetry into the store, and count what cannot be stored, by reason."""

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
from ltrain_collector.access import Sender
from ltrain_collector.errors import BadRequest
from ltrain_collector.http import OtlpError
from ltrain_collector.ingest import LOGS, METRICS, TRACES, Block, Rows, Signal, origin, otlp_json
from ltrain_collector.store import Store
from ltrain_collector.transfer import lightning
from ltrain_collector.transfer.documents import Document, read_documents

BATCH_BYTES = 16 << 20
"""Bytes of rows in one insert."""

PROGRESS_BYTES = 4 << 20
"""Bytes of a file between two reports of progress."""

MAX_PLACES = 20
"""Number of unreadable places that are listed; further ones are only counted."""


SIGNAL_KEYS = {"resourceSpans": TRACES, "resourceLogs": LOGS, "resourceMetrics": METRICS}
"""The top-level JSON key of each signal."""


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


IS_SIGNAL: dict[Signal, Callable[[Any], bool]] = {
    TRACES: _is_traces,
    LOGS: _is_logs,
    METRICS: _is_metrics,
}
"""Checks by the first record whether a message is of this signal, which protobuf does not tell."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an import."""

    path: Path
    read: int
    """Bytes of the file that have been read."""
    size: int


@dataclass(slots=True)
class ImportCounts:
    """Counts of stored, rejected and unreadable records."""

    files: int = 0
    records: int = 0
    stored: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    places: list[str] = field(default_factory=list)
    """The first unreadable places, with the reason."""

    def add_unreadable(self, place: str, why: str) -> None:
        self.unreadable += 1
        if len(self.places) < MAX_PLACES:
            self.places.append(f"{place}: {why}")


def list_files(path: Path) -> list[Path]:
    """Return the files in a folder, without hidden ones; or the file itself.

    Raises:
        BadRequest: there is no file.
    """
    if path.is_file():
        return [path]
    files = sorted(
        each
        for each in path.rglob("*")
        if each.is_file() and not any(part.startswith(".") for part in each.relative_to(path).parts)
    )
    if not files:
        what = "is empty" if path.is_dir() else "does not exist"
        raise BadRequest(
            f"{path} {what}. Name a file of OTLP (JSON or protobuf, with gzip, zstd or no "
            "compression), or a folder of files."
        )
    return files


def import_files(
    store: Store, paths: list[Path], on_progress: Callable[[Progress], None], trusted: bool = False
) -> ImportCounts:
    """Store all records of the files.

    Args:
        on_progress: called at the start of each file and after every `PROGRESS_BYTES` of it.
        trusted: keep the senders in the files; otherwise the sender of all is `import`.
    """
    counts = ImportCounts()
    pending: defaultdict[str, list[Block]] = defaultdict(list)
    size = 0
    for path in paths:
        counts.files += 1
        for document in _read_with_progress(path, on_progress):
            rows = _encode(document, counts, trusted)
            for table, block in rows.blocks.items():
                pending[table].append(block)
            size += rows.size
            if size > BATCH_BYTES:
                counts.stored += _insert(store, pending)
                pending.clear()
                size = 0
    counts.stored += _insert(store, pending)
    return counts


def _read_with_progress(path: Path, on_progress: Callable[[Progress], None]) -> Iterator[Document]:
    size, reported = path.stat().st_size, 0
    on_progress(Progress(path, 0, size))
    for document in read_documents(path):
        yield document
        if document.read >= reported + PROGRESS_BYTES:
            reported = document.read
            on_progress(Progress(path, reported, size))


def _encode(document: Document, counts: ImportCounts, trusted: bool) -> Rows:
    try:
        if document.fault:
            raise BadRequest(document.fault)
        signal, message = _parse_document(document)
        if not trusted:
            origin.remove_sender(message)
        origin.set_sender(message, Sender.IMPORT, replace=not trusted)
        rows = signal.encode(message, None)
    except (BadRequest, OtlpError) as error:
        counts.add_unreadable(document.place, str(error))
        return Rows({})
    except RecursionError:
        counts.add_unreadable(document.place, "it is nested too deeply")
        return Rows({})
    counts.records += rows.count + rows.rejected
    if rows.rejected:
        counts.rejected[rows.reason] += rows.rejected
    return rows


def _parse_document(document: Document) -> tuple[Signal, Any]:
    if document.json is None:
        return _parse_protobuf(document.protobuf)
    if lightning.is_span(document.json):
        return TRACES, lightning.span_request(document.json)
    for key, signal in SIGNAL_KEYS.items():
        if isinstance(document.json, dict) and key in document.json:
            return signal, otlp_json.message_from_json(document.json, signal.request)
    keys = ", ".join(list(document.json)[:3]) if isinstance(document.json, dict) else "no object"
    raise BadRequest(f"it has none of the keys {', '.join(SIGNAL_KEYS)}, but {keys}")


def _parse_protobuf(body: bytes) -> tuple[Signal, Any]:
    for signal, is_signal in IS_SIGNAL.items():
        try:
            message = signal.request.FromString(body)
        except DecodeError:
            continue
        if is_signal(message):
            return signal, message
    raise BadRequest("it is neither OTLP in JSON nor protobuf")


def _insert(store: Store, pending: dict[str, list[Block]]) -> int:
    for table, blocks in pending.items():
        store.insert_rows(schema.insert_target(table), b"".join(block.payload for block in blocks))
    return sum(block.rows for blocks in pending.values() for block in blocks)
