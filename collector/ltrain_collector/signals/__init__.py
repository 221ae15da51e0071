"""The signals of OTLP, one module each: tables, rows of a request, and requests of rows.

A new signal is a module with its record, its place in `registry.py`, and its files in `ddl/`.
"""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.signals import origin, otlp_json
    from ltrain_collector.signals.logs import LOGS
    from ltrain_collector.signals.metrics import METRICS
    from ltrain_collector.signals.registry import SIGNALS, TABLES
    from ltrain_collector.signals.signal import Retention, Signal, Table
    from ltrain_collector.signals.traces import TRACES, encode_traces
    from ltrain_collector.signals.values import Row, value_text
    from ltrain_collector.signals.writer import Block, Rows

open_face(__name__)
