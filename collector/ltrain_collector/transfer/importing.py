"""Import files of telemetry into the store, and count what cannot be stored, by reason."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ltrain_collector import schema
from ltrain_collector.access import Sender
from ltrain_collector.errors import BadRequest, OtlpError
from ltrain_collector.signals import SIGNALS, TRACES, Block, Rows, Signal, origin, otlp_json
from ltrain_collector.store import Store
from ltrain_collector.transfer import lightning
from ltrain_collector.transfer.documents import Document, read_documents
from ltrain_collector.transfer.staging import Staging

BATCH_BYTES = 16 << 20
"""Bytes of rows in one insert."""

PROGRESS_BYTES = 4 << 20
"""Bytes of a file between two reports of progress."""

MAX_PLACES = 20
"""Number of unreadable places that are listed; further ones are only counted."""


Batch = dict[str, list[Block]]
"""The blocks of rows of one insert, by table."""
NOUNS = {table.name: signal.noun for signal in SIGNALS for table in signal.tables}
SIGNAL_KEYS = {signal.json_key: signal for signal in SIGNALS}


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
    stored_rows: Counter[str] = field(default_factory=Counter)
    """The stored records of each kind, e.g. of `spans`."""
    new_rows: Counter[str] = field(default_factory=Counter)
    """Those of them that the store did not hold before; repeated ones count once."""
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
    with Staging(store) as staging:
        for batch in _batches(paths, on_progress, counts, trusted):
            _insert(store, staging, batch, counts)
    return counts


def _batches(
    paths: list[Path],
    on_progress: Callable[[Progress], None],
    counts: ImportCounts,
    trusted: bool,
) -> Iterator[Batch]:
    """Yield the encoded rows of all files in batches of a little more than `BATCH_BYTES`."""
    pending, size = defaultdict[str, list[Block]](list), 0
    for path in paths:
        counts.files += 1
        for document in _read_with_progress(path, on_progress):
            rows = _encode(document, counts, trusted)
            for table, block in rows.blocks.items():
                pending[table].append(block)
            size += rows.size
            if size > BATCH_BYTES:
                yield pending
                pending, size = defaultdict(list), 0
    yield pending


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
    for signal in SIGNALS:
        try:
            message = signal.request.FromString(body)
        except DecodeError:
            continue
        if signal.matches(message):
            return signal, message
    raise BadRequest("it is neither OTLP in JSON nor protobuf")


def _insert(store: Store, staging: Staging, batch: Batch, counts: ImportCounts) -> None:
    for table, blocks in batch.items():
        payload, rows = b"".join(block.payload for block in blocks), sum(b.rows for b in blocks)
        new = staging.count_new(table, payload, rows)
        store.insert_rows(schema.insert_target(table), payload)
        counts.stored += rows
        counts.stored_rows[NOUNS[table]] += rows
        counts.new_rows[NOUNS[table]] += new
