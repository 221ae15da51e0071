"""The health of the collector, from the metrics that it stores about itself."""

from ltrain_collector.errors import QueryFailed
from ltrain_collector.store import Store
from ltrain_transforms.reports.report import Facts, format_size

SILENT_AFTER = 300
"""Seconds without a measurement after which a collector is reported as silent; it measures itself
each minute at least."""
PREFIX = "ltrain_collector_"
LOSSES = {
    "rejected_total": "records rejected",
    "refused_total": "requests refused",
    "insert_failures_total": "inserts failed",
}
"""Counters that are 0 on a healthy collector, and what each counts."""
HEALTH = f"""
SELECT substring(name, {len(PREFIX) + 1}) AS metric, sum(value) AS total,
    formatDateTime(max(measured), '%Y-%m-%d %H:%i:%S', 'UTC') AS latest,
    toInt64(dateDiff('second', max(measured), now64(9))) AS age
FROM otel.collector_health
WHERE name IN {{names:Array(String)}} GROUP BY metric
"""


def collector_health(store: Store) -> Facts:
    """Return what the collector measured of itself, since its start."""
    names = [f"{PREFIX}{name}" for name in ("accepted_total", "disk_free_bytes", *LOSSES)]
    try:
        rows = store.query(HEALTH, {"names": names}).rows()
    except QueryFailed as error:  # views of another version: the runs are shown all the same
        return Facts("Collector", (("collector", f"not known: {error}"),))
    if not rows:
        reason = "no measurement in the last day: no collector runs, or it keeps no metrics"
        return Facts("Collector", (("collector", reason),))
    totals = {metric: total for metric, total, _, _ in rows}
    latest, age = max((latest, age) for _, _, latest, age in rows)
    losses = [f"{totals[name]:,.0f} {what}" for name, what in LOSSES.items() if totals.get(name)]
    silent = f"silent: no measurement for {age // 60:,} minutes"
    state = silent if age > SILENT_AFTER else ", ".join(losses) or "healthy, nothing was refused"
    facts = [("collector", state), ("measured (UTC)", latest)]
    if "accepted_total" in totals:
        facts.append(("records stored", f"{totals['accepted_total']:,.0f} since its start"))
    if age > SILENT_AFTER and losses:
        facts.append(("losses", ", ".join(losses)))
    if "disk_free_bytes" in totals:
        facts.append(("disk", f"{format_size(totals['disk_free_bytes'])} free"))
    return Facts("Collector", tuple(facts))
