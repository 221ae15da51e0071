"""Accepted OTLP requests to further endpoints: `ltrain up --forward`."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.forward.target import Target, parse_targets, require_others
    from ltrain_collector.forward.tee import Tee, forward_folder

open_face(__name__)
