"""The trace store: ClickHouse in this process or behind HTTP, its tables and views."""

from ltrain_collector.store import dsn, promoted_columns, rollout_stream, schema
from ltrain_collector.store.chdb_engine import (
    BACKUPS,
    Engine,
    query_errors,
    quote_literal,
    setup_statements,
)
from ltrain_collector.store.dsn import Server, local_folder, parse_dsn
from ltrain_collector.store.embedded import EmbeddedBackend
from ltrain_collector.store.formats import READING_STATEMENT, is_streamable, stream_result
from ltrain_collector.store.migration import program_version
from ltrain_collector.store.parameters import Parameters
from ltrain_collector.store.schema import ROLLOUT_ORDER
from ltrain_collector.store.trace_store import Store

__all__ = [
    "BACKUPS",
    "READING_STATEMENT",
    "ROLLOUT_ORDER",
    "EmbeddedBackend",
    "Engine",
    "Parameters",
    "Server",
    "Store",
    "dsn",
    "is_streamable",
    "local_folder",
    "parse_dsn",
    "program_version",
    "promoted_columns",
    "query_errors",
    "quote_literal",
    "rollout_stream",
    "schema",
    "setup_statements",
    "stream_result",
]
