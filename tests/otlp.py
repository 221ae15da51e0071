"""OTLP requests into a store of a test, without a collector."""

from ltrain_collector import schema
from ltrain_collector.ingest import TRACES, Rows, Signal
from ltrain_collector.store import Store


def insert_otlp(store: Store, body: bytes, signal: Signal = TRACES) -> Rows:
    """Insert one serialised request; a resource that names no sender gets the sender `local`."""
    rows = signal.encode_local(signal.parse_request(body))
    for table, block in rows.blocks.items():
        store.insert_rows(schema.insert_target(table), block.payload)
    return rows
