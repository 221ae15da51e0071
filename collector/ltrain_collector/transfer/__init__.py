"""`ltrain import` and `ltrain export`: files of telemetry into the store and out of it."""

from ltrain_collector.transfer.commands import export_records, run_import

__all__ = ["export_records", "run_import"]
