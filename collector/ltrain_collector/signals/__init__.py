"""The signals of OTLP, one module each: tables, rows of a request, and requests of rows.

A new signal is a module with its record, its place in `SIGNALS`, and its files in `ddl/`.
"""

from ltrain_collector.signals import origin, otlp_json
from ltrain_collector.signals.logs import LOGS
from ltrain_collector.signals.metrics import METRICS
from ltrain_collector.signals.signal import Retention, Signal, Table
from ltrain_collector.signals.traces import TRACES, encode_traces
from ltrain_collector.signals.values import Row
from ltrain_collector.signals.writer import Block, Rows

SIGNALS = (TRACES, LOGS, METRICS)

TABLES = {table.name: table for signal in SIGNALS for table in signal.tables}
"""The tables of all signals, by name."""

__all__ = [
    "LOGS",
    "METRICS",
    "SIGNALS",
    "TABLES",
    "TRACES",
    "Block",
    "Retention",
    "Row",
    "Rows",
    "Signal",
    "Table",
    "encode_traces",
    "origin",
    "otlp_json",
]
