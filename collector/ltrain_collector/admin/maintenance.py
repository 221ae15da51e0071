"""Maintenance of a store: its status, and the removal of old rows."""

from dataclasses import dataclass
from datetime import UTC, datetime

from ltrain_collector import schema
from ltrain_collector.errors import BadPrune, QueryFailed
from ltrain_collector.signals import TABLES, TRACES, Retention, Table
from ltrain_collector.store import Store, program_version

TABLE_SIZE = (
    "SELECT count() AS parts, sum(rows) AS rows, sum(bytes_on_disk) AS bytes FROM system.parts "
    "WHERE active AND database = {database:String} AND table = {name:String}"
)


def store_status(store: Store) -> dict[str, object]:
    """Return versions, runs, and rows, bytes, times and duplicates of each table."""
    report: dict[str, object] = {"store": store.name, "program": program_version()}
    report["version"] = int(store.query(schema.VERSION).item())
    for table in TABLES.values():
        database, _, name = table.name.partition(".")
        [parts] = store.query(TABLE_SIZE, {"database": database, "name": name}).to_dicts()
        sql = f"SELECT min({table.time}) AS oldest, max({table.time}) AS newest FROM "
        [times] = store.query(sql + table.name).to_dicts()
        once = store.query(f"SELECT count() AS n FROM {table.name} FINAL")["n"].item()
        copies = store.query(f"SELECT count() AS n FROM {table.name}")["n"].item() - once
        report[table.key] = {
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
    """The rows of one table that a prune removes and leaves."""

    table: str
    rows: int
    remaining: int
    bytes: int
    """Size on disk of the removed rows, estimated by their share of all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneFilter:
    """The conditions on rows to remove: a row must meet every condition that is set."""

    before: datetime | None = None
    """Remove rollouts whose last span started earlier, and older spans without a rollout."""
    run: str | None = None
    mode: str | None = None
    kept: tuple[str, ...] = ()
    """Ids of rollouts, and of traces of no rollout, that stay; they are part of the statement."""

    def check(self) -> None:
        """Raise `BadPrune` if no condition is set."""
        if self == PruneFilter(kept=self.kept):
            raise BadPrune(
                "No condition selects what to remove. Set --older-than DAYS, --run or --mode; rows "
                "must meet all of them."
            )

    @property
    def params(self) -> dict[str, object]:
        """The values of the parameters in its conditions."""
        before = None if self.before is None else int(self.before.timestamp() * 1000)
        kept = list(self.kept) or None
        values = {"run": self.run, "mode": self.mode, "before": before, "kept": kept}
        return {name: value for name, value in values.items() if value is not None}

    def condition(self, table: Table) -> str:
        """Return the SQL condition over a table."""
        if table.retention is Retention.ROLLOUT:
            return " AND ".join([*self._run_and_mode(), *self._whole_rollouts(table)])
        if table.retention is Retention.WITH_ROLLOUT:
            return self._with_rollout(table)
        if self.run is not None or self.mode is not None:
            return "false"
        return f"{table.time} < {CUT}"

    def _with_rollout(self, table: Table) -> str:
        [spans] = TRACES.tables
        gone = f"SELECT RolloutId FROM {spans.name} WHERE {self.condition(spans)}"
        known = f"SELECT RolloutId FROM {spans.name} WHERE RolloutId != ''"
        # rows of a rollout without spans have no mode: only age and run select them
        alone = [
            *(["false"] if self.mode is not None else self._run_and_mode()),
            *self._whole_rollouts(table),
        ]
        return (
            f"(RolloutId != '' AND RolloutId IN ({gone})) OR "
            f"(RolloutId NOT IN ({known}) AND {' AND '.join(alone)})"
        )

    def _run_and_mode(self) -> list[str]:
        run = ["RunId = {run:String}"] * (self.run is not None)
        return [*run, *["Mode = {mode:String}"] * (self.mode is not None)]

    def _whole_rollouts(self, table: Table) -> list[str]:
        """Return the conditions on rollouts: all rows of a rollout are removed, or none."""
        spared = [f"NOT has({{kept:Array(String)}}, {EXECUTION})"] * bool(self.kept)
        if self.before is None:
            return spared
        young = f"SELECT RolloutId FROM {table.name} WHERE {table.time} >= {CUT}"
        young += " AND RolloutId != ''"
        old = f"(RolloutId = '' OR RolloutId NOT IN ({young}))"
        return [f"{table.time} < {CUT}", old, *spared]


EXECUTION = "if(RolloutId != '', RolloutId, TraceId)"
"""The rollout of a row, or the trace of a row of no rollout."""
CUT = "fromUnixTimestamp64Milli(toInt64({before:Int64}), 'UTC')"


def prune(store: Store, selection: PruneFilter, delete: bool) -> list[PrunedTable]:
    """Count the rows of each table that `selection` selects, and remove them if `delete`.

    Raises:
        BadPrune: no condition is set, or an exporter created a table.
    """
    selection.check()
    counted = [_count(store, selection, table) for table in TABLES.values()]
    if delete:
        # spans last: the conditions of other tables read them
        for table, counts in reversed(list(zip(TABLES.values(), counted, strict=True))):
            if counts.rows:
                _delete(store, selection, table)
    return counted


def _count(store: Store, selection: PruneFilter, table: Table) -> PrunedTable:
    where = selection.condition(table)
    count = f"SELECT countIf({where}) AS gone, count() AS rows FROM {table.name}"
    try:
        [counts] = store.query(count, selection.params).to_dicts()
    except QueryFailed as error:
        raise BadPrune(
            f"{table.name} cannot be pruned: it lacks ltrain's columns, so an exporter created "
            f"it. Set a TTL on the table instead. ({error})"
        ) from error
    database, _, name = table.name.partition(".")
    size = store.query(TABLE_SIZE, {"database": database, "name": name})["bytes"].item()
    share = counts["gone"] / counts["rows"] if counts["rows"] else 0.0
    return PrunedTable(
        table.name, counts["gone"], counts["rows"] - counts["gone"], round(size * share)
    )


def _delete(store: Store, selection: PruneFilter, table: Table) -> None:
    where = _inline_parameters(selection.condition(table), selection.params)
    store.command(f"ALTER TABLE {table.name} DELETE WHERE {where} {SYNC}")
    for derived in table.derived:
        gone = f"TraceId NOT IN (SELECT TraceId FROM {table.name})"
        store.command(f"ALTER TABLE {derived} DELETE WHERE {gone} {SYNC}")


SYNC = "SETTINGS mutations_sync = 2"


def _inline_parameters(where: str, params: dict[str, object]) -> str:
    """Replace the parameters by their values: ClickHouse stores a mutation as text."""
    for name, value in params.items():
        kind, literal = _literal(value)
        where = where.replace(f"{{{name}:{kind}}}", literal)
    return where


def _literal(value: object) -> tuple[str, str]:
    """Return the type of a parameter, and its value as SQL."""
    if isinstance(value, int):
        return "Int64", str(value)
    if isinstance(value, list):
        return "Array(String)", f"[{', '.join(_literal(each)[1] for each in value)}]"
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return "String", f"'{text}'"


def days_ago(days: float) -> datetime:
    """Return the time `days` days ago."""
    now = datetime.now(UTC).timestamp()
    return datetime.fromtimestamp(now - days * 86_400, UTC)
