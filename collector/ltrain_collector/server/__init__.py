"""`ltrain up`: one process that owns a store's folder, with a listener for each protocol."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.server.serve import Ports, serve

open_face(__name__)
