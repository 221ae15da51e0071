"""Marks of a run, from columns that cost little: another mark means that the run has changed."""

from ltrain_collector.store import Store

SPANS = """
SELECT toString(RunId) AS run, toInt64(count()) AS spans,
    toUnixTimestamp64Nano(max(Timestamp)) AS latest,
    toUnixTimestamp64Milli(max(IngestedAt)) AS arrived
FROM otel.spans WHERE {where} GROUP BY run ORDER BY latest DESC, run LIMIT {{limit:UInt32}}
"""
EVALUATIONS = """
SELECT toString(run) AS run, toInt64(count()) AS evaluations
FROM otel.evaluations WHERE {where} GROUP BY run
"""

Change = tuple[int, ...]
"""Differs after spans or evaluations of the run have arrived; empty without a span."""


def latest_changes(store: Store, limit: int) -> dict[str, Change]:
    """Return the change of each run, for so many runs with the newest spans; the newest first."""
    return _changes(store, "RunId != ''", "true", {"limit": limit})


def run_change(store: Store, run: str) -> Change:
    """Return the change of a run."""
    judged = "run IN ('', {run:String})"
    return _changes(store, "RunId = {run:String}", judged, {"run": run, "limit": 1}).get(run, ())


def _changes(
    store: Store, spans: str, evaluations: str, parameters: dict[str, object]
) -> dict[str, Change]:
    """Return the changes of the runs whose spans and evaluations fulfil the conditions.

    Feedback may name no run, so it changes every one.
    """
    judged = dict(store.query(EVALUATIONS.format(where=evaluations), parameters).iter_rows())
    return {
        run: (*numbers, judged.get(run, 0), judged.get("", 0))
        for run, *numbers in store.query(SPANS.format(where=spans), parameters).iter_rows()
    }
