"""OTLP over HTTP and gRPC into the store."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.ingest.budgets import Budgets, IngestLimits
    from ltrain_collector.ingest.instruments import SECONDS_BOUNDS
    from ltrain_collector.ingest.intake import (
        BODY_TIMEOUT,
        MAX_BODY_BYTES,
        MAX_JSON_BYTES,
        Intake,
        error_status,
        rpc_status,
        serialize_message,
    )

open_face(__name__)
