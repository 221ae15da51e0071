"""All signals of OTLP that the collector stores, and their tables."""

from ltrain_collector.signals.logs import LOGS
from ltrain_collector.signals.metrics import METRICS
from ltrain_collector.signals.traces import TRACES

SIGNALS = (TRACES, LOGS, METRICS)

TABLES = {table.name: table for signal in SIGNALS for table in signal.tables}
"""The tables of all signals, by name."""
