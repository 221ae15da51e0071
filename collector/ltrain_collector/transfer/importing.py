"""Import files of telemetry into the store, and count what cannot be stored, by reason."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

from google.protobuf.message import DecodeError

from ltrain_collector import schema
from ltrain_collector.access import UNLIMITED, Sender
from ltrain_collector.errors import BadRequest, OtlpError
from ltrain_collector.signals import SIGNALS, TRACES, Block, Rows, Signal, origin, otlp_json
from ltrain_collector.sources import reader_of
from ltrain_collector.store import Store
from ltrain_collector.transfer import lightning, tables
from ltrain_collector.transfer.documents import Document, read_documents

PREFIX = "import_"
"""How the names of these tables begin."""

SORTING_KEY = (
    "SELECT sorting_key FROM system.tables WHERE database = {database:String} "
    "AND name = {name:String} AND engine LIKE '%ReplacingMergeTree'"
)
LEFTOVERS = (
    f"SELECT name FROM system.tables WHERE database = 'otel' AND startsWith(name, '{PREFIX}') "
    "AND engine = 'Memory' AND metadata_modification_time < now() - INTERVAL 1 DAY"
)
"""Tables of imports that were killed; no import takes a day."""


class Staging(AbstractContextManager["Staging"]):
    """The tables in memory of one import: they count the rows that the store does not hold yet.

    The store recognises a duplicate by the sorting key of its table. The key of log records and
    data points has a hash that ClickHouse computes from all columns, so a batch is first inserted
    into a table in memory that has the same computed columns. The tables are dropped at the end.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._id = uuid4().hex
        self._keys: dict[str, str] = {}
        """The sorting key of each table; '' for one that keeps duplicates."""
        for name in store.query(LEFTOVERS)["name"]:
            store.command(f"DROP TABLE IF EXISTS otel.{name}")

    def count_new(self, table: str, payload: bytes, rows: int) -> int:
        """Return how many of the rows in `payload` are new; a repeated row counts once.

        All rows are new for a table that keeps duplicates, as one that an exporter created.
        """
        key = self._key(table)
        if not key:
            return rows
        staging = self._name(table)
        self._store.insert_rows(schema.insert_target(table, into=staging), payload)
        own = f"SELECT {key} FROM {staging}"
        stored = f"SELECT {key} FROM {table} WHERE ({key}) IN ({own})"
        new = f"SELECT DISTINCT {key} FROM {staging} WHERE ({key}) NOT IN ({stored})"
        count = int(self._store.query(f"SELECT count() FROM ({new})").item())
        self._store.command(f"TRUNCATE TABLE {staging}")
        return count

    def __exit__(self, *_: object) -> None:
        for table, key in self._keys.items():
            if key:
                self._store.command(f"DROP TABLE IF EXISTS {self._name(table)}")

    def _key(self, table: str) -> str:
        """Return the sorting key of a table; the first call creates its table in memory."""
        if table not in self._keys:
            database, _, name = table.partition(".")
            keys = self._store.query(SORTING_KEY, {"database": database, "name": name})
            self._keys[table] = str(keys.item()) if keys.height else ""
            if self._keys[table]:
                self._store.command(f"CREATE TABLE {self._name(table)} AS {table} ENGINE = Memory")
        return self._keys[table]

    def _name(self, table: str) -> str:
        database, _, name = table.partition(".")
        return f"{database}.{PREFIX}{self._id}_{name}"


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
    """Return the files in a folder, without hidden ones; or the file itself."""
    if path.is_file():
        return [path]
    files = sorted(
        each
        for each in path.rglob("*")
        if each.is_file() and not any(part.startswith(".") for part in each.relative_to(path).parts)
    )
    if any(each.suffix in tables.READERS for each in files):
        files = [each for each in files if each.name not in tables.DESCRIPTIONS]
    if not files:
        what = "is empty" if path.is_dir() else "does not exist"
        raise BadRequest(
            f"{path} {what}. Name a file of OTLP (JSON or protobuf, with gzip, zstd or no "
            "compression) or another one that `ltrain import --help` lists, or a folder of files."
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
        store_documents(store, staging, file_documents(paths, on_progress, counts), counts, trusted)
    return counts


def file_documents(
    paths: list[Path], on_progress: Callable[[Progress], None], counts: ImportCounts
) -> Iterator[Document]:
    """Yield the documents of files, those of other programs as OTLP."""
    for path in paths:
        counts.files += 1
        yield from _read_with_progress(path, on_progress)


def store_documents(
    store: Store,
    staging: Staging,
    documents: Iterable[Document],
    counts: ImportCounts,
    trusted: bool = False,
) -> None:
    """Store the records of documents, in batches of a little more than `BATCH_BYTES`."""
    pending, size = defaultdict[str, list[Block]](list), 0
    for document in documents:
        rows = _encode(document, counts, trusted)
        for table, block in rows.blocks.items():
            pending[table].append(block)
        size += rows.size
        if size > BATCH_BYTES:
            _insert(store, staging, pending, counts)
            pending, size = defaultdict(list), 0
    _insert(store, staging, pending, counts)


def _read_with_progress(path: Path, on_progress: Callable[[Progress], None]) -> Iterator[Document]:
    size, reported = path.stat().st_size, 0
    on_progress(Progress(path, 0, size))
    for document in _as_otlp(path, read_documents(path)):
        yield document
        if document.read >= reported + PROGRESS_BYTES:
            reported = document.read
            on_progress(Progress(path, reported, size))


def _as_otlp(path: Path, documents: Iterator[Document]) -> Iterator[Document]:
    """Yield the documents; the records of another program's file become requests of OTLP."""
    first = next(documents, None)
    reader_type = first and reader_of(first.json)
    if first is None or not reader_type:
        yield from documents if first is None else chain([first], documents)
        return
    reader = reader_type(path.stat().st_mtime_ns)
    last = first
    for last in chain([first], documents):
        if last.fault:
            yield last
            continue
        try:
            for request in reader.add(last.json):
                yield replace(last, json=request)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            kind = reader_type.written_by.partition(":")[0]
            yield replace(last, fault=f"it is no record of {kind} that ltrain knows: {error!r}")
    for request in reader.end():
        yield replace(last, json=request, fault="")


def _encode(document: Document, counts: ImportCounts, trusted: bool) -> Rows:
    try:
        if document.fault:
            raise BadRequest(document.fault)
        signal, message = parse_document(document)
        if not trusted:
            origin.remove_sender(message)
        origin.set_sender(message, Sender.IMPORT, replace=not trusted)
        if document.source:
            origin.set_source(message, document.source)
        rows = signal.encode(message, UNLIMITED)
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


def parse_document(document: Document) -> tuple[Signal, Any]:
    """Return the signal and the OTLP request of a document.

    Raises:
        BadRequest, OtlpError: it is not OTLP.
    """
    if document.json is None:
        return _parse_protobuf(document.protobuf)
    if lightning.is_span(document.json):
        return TRACES, lightning.span_request(document.json)
    for key, signal in SIGNAL_KEYS.items():
        if isinstance(document.json, dict) and key in document.json:
            return signal, otlp_json.message_from_json(document.json, signal.request)
    keys = ", ".join(list(document.json)[:3]) if isinstance(document.json, dict) else "no object"
    wanted = ", ".join(SIGNAL_KEYS)
    others = "`ltrain import --help` lists the other files that are read"
    raise BadRequest(f"it has none of the keys {wanted}, but {keys}; {others}")


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
