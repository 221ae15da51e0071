"""The spans of a store in the order of their arrival, for a reader that follows it.

A span can be read once its insert is complete, which may be later than an insert that began after
it. A reader therefore goes back `OVERLAP` from the newest arrival, and ignores what it has.
"""

from dataclasses import dataclass

from ltrain_collector.errors import NotMigrated, QueryFailed
from ltrain_collector.promoted_columns import TOOL_SQL
from ltrain_collector.store import Store

OVERLAP = 10_000
"""Milliseconds that an insert may take."""
MAX_TEXT = 200
"""Characters of a name that are read."""
UNKNOWN_COLUMN = 47
"""ClickHouse's error code."""
ACTOR = (
    f"multiIf({TOOL_SQL} AND ToolName != '', toString(ToolName), "
    "AgentName != '', toString(AgentName), toString(GenAiModel))"
)
SINCE = "FROM otel.otel_traces WHERE IngestedAt > fromUnixTimestamp64Milli({since:Int64})"
"""The table, not its view: to remove duplicates, the view reads all of it."""
ARRIVALS = f"""
SELECT toUnixTimestamp64Milli(IngestedAt) AS arrived, toUnixTimestamp64Nano(Timestamp) AS started,
    TraceId AS trace, SpanId AS span, toString(ServiceName) AS service,
    substringUTF8(toString(SpanName), 1, {MAX_TEXT}) AS name,
    substringUTF8({ACTOR}, 1, {MAX_TEXT}) AS actor,
    toString(StatusCode) AS status, toString(RunId) AS run, RolloutId AS rollout,
    toFloat64(Duration) / 1e9 AS seconds
{SINCE} ORDER BY IngestedAt DESC, Timestamp DESC, TraceId, SpanId LIMIT {{limit:UInt32}}
"""
COUNT = f"SELECT toInt64(count()) AS spans {SINCE}"
LATEST = "SELECT toUnixTimestamp64Milli(max(IngestedAt)) AS latest FROM otel.otel_traces"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A span, as a list of spans shows it."""

    arrived: int
    """Unix time in milliseconds."""
    started: int
    """Unix time in nanoseconds."""
    trace: str
    span: str
    service: str
    name: str
    actor: str
    """The tool, the agent or the model."""
    status: str
    run: str
    rollout: str
    seconds: float


def latest_arrival(store: Store) -> int | None:
    """Return when the newest span arrived, in milliseconds; None if the store does not record it.

    Tables that an exporter created have no time of arrival.
    """
    try:
        return int(store.query(LATEST).item())
    except QueryFailed as error:
        if isinstance(error, NotMigrated) or not (
            error.table_missing or error.code == UNKNOWN_COLUMN
        ):
            raise
        return None


def read_arrivals(store: Store, since: int, limit: int) -> list[Arrival]:
    """Return the newest spans that arrived after a time, the oldest first, at most `limit`."""
    rows = store.query(ARRIVALS, {"since": since, "limit": limit}).to_dicts()
    return [Arrival(**row) for row in reversed(rows)]


def count_arrivals(store: Store, since: int) -> int:
    """Return the number of spans that arrived after a time."""
    return int(store.query(COUNT, {"since": since}).item())
