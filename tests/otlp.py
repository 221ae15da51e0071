"""An empty store of a test, and OTLP requests into it, without a collector."""

from pathlib import Path

from tests.empty_store import copy_empty_store

from ltrain_collector import schema
from ltrain_collector.signals import TRACES, Rows, Signal
from ltrain_collector.store import Store


def open_empty_store(folder: Path) -> Store:
    """Return the open store of a new folder. This process must have no other store open."""
    copy_empty_store(folder)
    return Store.open(f"chdb://{folder}")


def emptied(store: Store) -> Store:
    """Return the store without its rows; to open another one costs more than a test."""
    for table in ("otel_traces", "otel_trace_executions", "otel_logs"):
        store.command(f"TRUNCATE TABLE otel.{table}")
    return store


def insert_otlp(store: Store, body: bytes, signal: Signal = TRACES) -> Rows:
    """Insert one serialised request; a resource that names no sender gets the sender `local`."""
    rows = signal.encode_local(signal.parse_request(body))
    for table, block in rows.blocks.items():
        store.insert_rows(schema.insert_target(table), block.payload)
    return rows
