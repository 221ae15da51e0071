"""What a collector measures of itself: `/metrics`, `/health` and rows in its own store."""

from ltrain_collector.metrics import exposition
from ltrain_collector.metrics.health import Health
from ltrain_collector.metrics.self_metrics import SelfMetrics
from ltrain_collector.metrics.state import Monitor

__all__ = ["Health", "Monitor", "SelfMetrics", "exposition"]
