"""Maintenance of a store: its status, and the removal of old rows."""

from dataclasses import dataclass
from datetime import UTC, datetime

from ltrain_collector import schema
from ltrain_collector.errors import BadPrune, QueryFailed
from ltrain_collector.store import Store, program_version

TABLE_SIZE = (
    "SELECT count() AS parts, sum(rows) AS rows, sum(bytes_on_disk) AS bytes FROM system.parts "
    "WHERE active AND database = {database:String} AND table = {name:String}"
)


def store_status(store: Store) -> dict[str, object]:
    """Return versions, runs, and rows, bytes, times and duplicates of each signal."""
    report: dict[str, object] = {"store": store.name, "program": program_version()}
    report["version"] = int(store.query(schema.VERSION).item())
    for name, signal in schema.SIGNALS.items():
        database, _, table = signal.table.partition(".")
        [parts] = store.query(TABLE_SIZE, {"database": database, "name": table}).to_dicts()
        sql = f"SELECT min({signal.time}) AS oldest, max({signal.time}) AS newest FROM "
        [times] = store.query(sql + signal.table).to_dicts()
        once = store.query(f"SELECT count() AS n FROM {signal.table} FINAL")["n"].item()
        copies = store.query(f"SELECT count() AS n FROM {signal.table}")["n"].item() - once
        report[name] = {
            "rows": once,
            "copies_waiting_for_a_merge": copies,
            "bytes": parts["bytes"],
            "parts": parts["parts"],
            **({key: str(value) for key, value in times.items()} if once else {}),
        }
    runs = (
        "SELECT toString(RunId) AS run, uniqExactIf(RolloutId, RolloutId != '') AS rollouts, "
        "count() AS spans, max(Timestamp) AS newest FROM otel.spans GROUP BY run ORDER BY newest"
    )
    report["runs"] = [{**row, "newest": str(row["newest"])} for row in store.query(runs).to_dicts()]
    return report


@dataclass(frozen=True, slots=True)
class PrunedTable:
    """What a prune removes from one table, and what remains."""

    table: str
    rows: int
    remaining: int
    bytes: int
    """Size on disk of the removed rows, estimated by their share of all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneFilter:
    """Which rows to remove: those that meet all conditions that are set."""

    before: datetime | None = None
    """Remove rollouts whose last span started earlier, and older spans without a rollout."""
    run: str | None = None
    mode: str | None = None

    def check(self) -> None:
        """Raise `BadPrune` if no condition is set."""
        if self == PruneFilter():
            raise BadPrune(
                "No condition selects what to remove. Set --older-than DAYS, --run or --mode; rows "
                "must meet all of them."
            )

    @property
    def params(self) -> dict[str, object]:
        """The values of the parameters in its conditions."""
        before = None if self.before is None else int(self.before.timestamp() * 1000)
        values = {"run": self.run, "mode": self.mode, "before": before}
        return {name: value for name, value in values.items() if value is not None}

    def condition(self, signal: schema.Signal) -> str:
        """Return the SQL condition over the table of a signal."""
        if signal.table == schema.TRACES:
            return " AND ".join([*self._run_and_mode(), *self._whole_rollouts(signal)])
        if signal.table == schema.LOGS:
            spans = schema.SIGNALS["traces"]
            gone = f"SELECT RolloutId FROM {spans.table} WHERE {self.condition(spans)}"
            report = f"SELECT RolloutId FROM {spans.table} WHERE RolloutId != ''"
            # log records of a rollout without spans have no mode: only age and run select them
            alone = [
                *(["false"] if self.mode is not None else self._run_and_mode()),
                *self._whole_rollouts(signal),
            ]
            return (
                f"(RolloutId != '' AND RolloutId IN ({gone})) OR "
                f"(RolloutId NOT IN ({report}) AND {' AND '.join(alone)})"
            )
        if self.run is not None or self.mode is not None:
            return "false"  # a metric belongs to no run
        return f"{signal.time} < {CUT}"

    def _run_and_mode(self) -> list[str]:
        run = ["RunId = {run:String}"] * (self.run is not None)
        return [*run, *["Mode = {mode:String}"] * (self.mode is not None)]

    def _whole_rollouts(self, signal: schema.Signal) -> list[str]:
        """Return the age conditions: all rows of a rollout are removed, or none."""
        if self.before is None:
            return []
        young = f"SELECT RolloutId FROM {signal.table} WHERE {signal.time} >= {CUT}"
        young += " AND RolloutId != ''"
        return [f"{signal.time} < {CUT}", f"(RolloutId = '' OR RolloutId NOT IN ({young}))"]


CUT = "fromUnixTimestamp64Milli(toInt64({before:Int64}), 'UTC')"


def prune(store: Store, selection: PruneFilter, delete: bool) -> list[PrunedTable]:
    """Count the rows of each table that `selection` selects, and remove them if `delete`.

    Raises:
        BadPrune: no condition is set, or an exporter created a table.
    """
    selection.check()
    counted = [_count(store, selection, signal) for signal in schema.SIGNALS.values()]
    if delete:
        # spans last: the condition of log records reads them
        for signal, counts in reversed(list(zip(schema.SIGNALS.values(), counted, strict=True))):
            if counts.rows:
                _delete(store, selection, signal)
    return counted


def _count(store: Store, selection: PruneFilter, signal: schema.Signal) -> PrunedTable:
    where = selection.condition(signal)
    count = f"SELECT countIf({where}) AS gone, count() AS rows FROM {signal.table}"
    try:
        [counts] = store.query(count, selection.params).to_dicts()
    except QueryFailed as error:
        raise BadPrune(
            f"{signal.table} cannot be pruned: it lacks ltrain's columns, so an exporter created "
            f"it. Set a TTL on the table instead. ({error})"
        ) from error
    database, _, name = signal.table.partition(".")
    size = store.query(TABLE_SIZE, {"database": database, "name": name})["bytes"].item()
    share = counts["gone"] / counts["rows"] if counts["rows"] else 0.0
    return PrunedTable(
        signal.table, counts["gone"], counts["rows"] - counts["gone"], round(size * share)
    )


def _delete(store: Store, selection: PruneFilter, signal: schema.Signal) -> None:
    where = _inline_parameters(selection.condition(signal), selection.params)
    store.command(f"ALTER TABLE {signal.table} DELETE WHERE {where} {SYNC}")
    for made in signal.derived_tables:
        gone = f"TraceId NOT IN (SELECT TraceId FROM {signal.table})"
        store.command(f"ALTER TABLE {made} DELETE WHERE {gone} {SYNC}")


SYNC = "SETTINGS mutations_sync = 2"


def _inline_parameters(where: str, params: dict[str, object]) -> str:
    """Replace the parameters by their values: ClickHouse stores a mutation as text."""
    for name, value in params.items():
        kind = "Int64" if isinstance(value, int) else "String"
        text = str(value).replace("\\", "\\\\").replace("'", "\\'")
        where = where.replace(f"{{{name}:{kind}}}", f"'{text}'" if kind == "String" else text)
    return where


def days_ago(days: float) -> datetime:
    """Return the time `days` days ago."""
    now = datetime.now(UTC).timestamp()
    return datetime.fromtimestamp(now - days * 86_400, UTC)
