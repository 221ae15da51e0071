"""`ltrain import` and `ltrain export`: files of telemetry into the store and out of it."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.transfer.commands import export_records, run_import

open_face(__name__)
