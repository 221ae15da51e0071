"""What tells that a run has changed, read from columns that cost little."""

from ltrain_collector.store import Store

SPANS = """
SELECT toString(RunId) AS run, toInt64(count()) AS spans,
    toUnixTimestamp64Nano(max(Timestamp)) AS latest,
    toUnixTimestamp64Milli(max(IngestedAt)) AS arrived
FROM otel.spans WHERE RunId != '' GROUP BY run ORDER BY latest DESC, run LIMIT {limit:UInt32}
"""
OF_RUN = """
SELECT toInt64(count()) AS spans, toUnixTimestamp64Nano(max(Timestamp)) AS latest,
    toUnixTimestamp64Milli(max(IngestedAt)) AS arrived
FROM otel.spans WHERE RunId = {run:String}
"""
EVALUATIONS = """
SELECT toString(run) AS run, toInt64(count()) AS evaluations FROM otel.evaluations GROUP BY run
"""

Change = tuple[int, ...]
"""Is another one when spans or evaluations of a run have arrived."""


def latest_changes(store: Store, limit: int) -> dict[str, Change]:
    """Return the change of each run, for so many runs with the newest spans; the newest first."""
    judged = _evaluations(store)
    spans = store.query(SPANS, {"limit": limit})
    return {run: (*numbers, *_judged(judged, run)) for run, *numbers in spans.iter_rows()}


def run_change(store: Store, run: str) -> Change:
    """Return the change of a run; it may have no span."""
    (numbers,) = store.query(OF_RUN, {"run": run}).iter_rows()
    return (*numbers, *_judged(_evaluations(store), run))


def _evaluations(store: Store) -> dict[str, int]:
    return dict(store.query(EVALUATIONS).iter_rows())


def _judged(evaluations: dict[str, int], run: str) -> Change:
    """Return the numbers of evaluations of a run, and of feedback, which may name no run."""
    return evaluations.get(run, 0), evaluations.get("", 0)
