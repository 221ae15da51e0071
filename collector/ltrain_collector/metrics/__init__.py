"""The collector's measurements of itself: `/metrics`, `/health` and rows in its own store."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_collector.metrics.health import Health
    from ltrain_collector.metrics.monitor import Monitor
    from ltrain_collector.metrics.own_metrics import CONTENT_TYPE, OwnMetrics
    from ltrain_collector.metrics.self_metrics import SelfMetrics

open_face(__name__)
