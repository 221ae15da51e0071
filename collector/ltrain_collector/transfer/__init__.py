"""`ltrain import` and `ltrain export`: telemetry into the store and out of it."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.transfer.commands import export_records
    from ltrain_collector.transfer.import_command import ImportOptions, run_import

open_face(__name__)
