"""The unit of stored traffic, and a source of all executions of one mode."""

from typing import Literal

from ltrain_collector.promoted_columns import MODE_SQL
from ltrain_collector.store import Store
from ltrain_instrument import attributes
from ltrain_instrument.identity import SourceMode
from ltrain_transforms.recipe import Source, TrustedSender

MODES = (
    f"SELECT {MODE_SQL} AS mode, uniq(TraceId) AS traces FROM otel.spans "
    "WHERE {run:String} IN ('', RunId) GROUP BY mode ORDER BY traces DESC LIMIT 1"
)
"""The mode with the most traces."""
EVERY_SENDER: tuple[TrustedSender, ...] = ("import", "ingest", "none", "agent", "")


def traffic_source(
    store: Store, *, run: str | None, mode: SourceMode | None, since: str | None
) -> Source:
    """Return a source of the executions of a mode; None is the mode with the most traces."""
    if mode is None:
        found = store.query(MODES, {"run": run or ""})
        mode = found["mode"][0] if found.height else "prod"
    unit = "rollout" if mode != "prod" else execution_unit(store, run)
    return Source(run=run, mode=mode, since=since, execution=unit, trust=EVERY_SENDER)


def execution_unit(store: Store, run: str | None) -> Literal["rollout", "session", "trace"]:
    """Return the unit that is rewarded: production requests have no rollout, and feedback of a
    conversation has no trace. Calls that were joined by content are traces of one conversation.
    """
    if run is not None:
        return "rollout"
    judged = f"SpanName = '{attributes.SPAN_EVALUATION}'"
    sql = (
        f"SELECT countIf(RolloutId != '' AND NOT {judged}) AS rollouts, "
        f"countIf(NOT {judged}) AS spans, "
        f"countIf({judged} AND SessionId != '') AS judged_sessions, "
        f"countIf(startsWith(SessionId, '{attributes.CONVERSATION_PREFIX}')) AS joined_calls "
        "FROM otel.spans"
    )
    row = store.query(f"{sql} WHERE {MODE_SQL} = 'prod'").row(0, named=True)
    if row["judged_sessions"] or row["joined_calls"]:
        return "session"
    return "rollout" if row["rollouts"] and row["rollouts"] == row["spans"] else "trace"
