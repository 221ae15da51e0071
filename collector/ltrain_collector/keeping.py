"""What a store's keeper asks for: how it stands, and what may go."""

from dataclasses import dataclass
from datetime import UTC, datetime

from ltrain_collector import schema
from ltrain_collector.errors import BadPrune, QueryFailed
from ltrain_collector.migration import program
from ltrain_collector.store import Store

PARTS = (
    "SELECT count() AS parts, sum(rows) AS rows, sum(bytes_on_disk) AS bytes FROM system.parts "
    "WHERE active AND database = {database:String} AND table = {name:String}"
)


def status(store: Store) -> dict[str, object]:
    """Say how the store stands: versions, and per signal rows, bytes, times and copies."""
    told: dict[str, object] = {"store": store.name, "program": program()}
    told["version"] = int(store.query(schema.VERSION).item())
    for name, signal in schema.SIGNALS.items():
        database, _, table = signal.table.partition(".")
        [parts] = store.query(PARTS, {"database": database, "name": table}).to_dicts()
        sql = f"SELECT min({signal.time}) AS oldest, max({signal.time}) AS newest FROM "
        [times] = store.query(sql + signal.table).to_dicts()
        once = store.query(f"SELECT count() AS n FROM {signal.table} FINAL")["n"].item()
        copies = store.query(f"SELECT count() AS n FROM {signal.table}")["n"].item() - once
        told[name] = {
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
    told["runs"] = [{**row, "newest": str(row["newest"])} for row in store.query(runs).to_dicts()]
    return told


@dataclass(frozen=True, slots=True)
class Pruned:
    """Of one table: the rows that go, and the rest."""

    table: str
    rows: int
    kept: int
    bytes: int
    """On disk of what goes, by its share of the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What goes: everything that all given conditions name."""

    before: datetime | None = None
    """Rollouts, and spans of none, whose last span began earlier."""
    run: str | None = None
    mode: str | None = None

    def check(self) -> None:
        """Raise `BadPrune` where nothing is named."""
        if self == Choice():
            raise BadPrune(
                "Nothing was named that may go. Give --older-than DAYS, --run or --mode; together "
                "they name what all of them do."
            )

    @property
    def params(self) -> dict[str, object]:
        """The values of its conditions' parameters."""
        before = None if self.before is None else int(self.before.timestamp() * 1000)
        given = {"run": self.run, "mode": self.mode, "before": before}
        return {name: value for name, value in given.items() if value is not None}

    def condition(self, signal: schema.Signal) -> str:
        """Say it in SQL over a signal's table."""
        if signal.table == schema.TRACES:
            return " AND ".join([*self._own(), *self._whole(signal)])
        if signal.table == schema.LOGS:
            spans = schema.SIGNALS["traces"]
            gone = f"SELECT RolloutId FROM {spans.table} WHERE {self.condition(spans)}"
            told = f"SELECT RolloutId FROM {spans.table} WHERE RolloutId != ''"
            # the log records of a rollout without spans go by themselves, if nobody asks its mode
            alone = [*(["false"] if self.mode is not None else self._own()), *self._whole(signal)]
            return (
                f"(RolloutId != '' AND RolloutId IN ({gone})) OR "
                f"(RolloutId NOT IN ({told}) AND {' AND '.join(alone)})"
            )
        if self.run is not None or self.mode is not None:
            return "false"  # a metric is of no run
        return f"{signal.time} < {CUT}"

    def _own(self) -> list[str]:
        run = ["RunId = {run:String}"] * (self.run is not None)
        return [*run, *["Mode = {mode:String}"] * (self.mode is not None)]

    def _whole(self, signal: schema.Signal) -> list[str]:
        """A rollout goes whole, or stays whole."""
        if self.before is None:
            return []
        young = f"SELECT RolloutId FROM {signal.table} WHERE {signal.time} >= {CUT}"
        young += " AND RolloutId != ''"
        return [f"{signal.time} < {CUT}", f"(RolloutId = '' OR RolloutId NOT IN ({young}))"]


CUT = "fromUnixTimestamp64Milli(toInt64({before:Int64}), 'UTC')"


def prune(store: Store, choice: Choice, really: bool) -> list[Pruned]:
    """Remove what is chosen from every signal's table, or only count it.

    Raises:
        BadPrune: when nothing is chosen, or a table is an exporter's.
    """
    choice.check()
    counted = [_counted(store, choice, signal) for signal in schema.SIGNALS.values()]
    if really:
        # the spans last: they say which rollouts the log records are of
        for signal, found in reversed(list(zip(schema.SIGNALS.values(), counted, strict=True))):
            if found.rows:
                _remove(store, choice, signal)
    return counted


def _counted(store: Store, choice: Choice, signal: schema.Signal) -> Pruned:
    where = choice.condition(signal)
    count = f"SELECT countIf({where}) AS gone, count() AS rows FROM {signal.table}"
    try:
        [found] = store.query(count, choice.params).to_dicts()
    except QueryFailed as error:
        raise BadPrune(
            f"{signal.table} cannot be pruned: it lacks ltrain's columns, so an exporter made "
            f"it; its own TTL prunes it. ({error})"
        ) from error
    database, _, name = signal.table.partition(".")
    size = store.query(PARTS, {"database": database, "name": name})["bytes"].item()
    share = found["gone"] / found["rows"] if found["rows"] else 0.0
    return Pruned(signal.table, found["gone"], found["rows"] - found["gone"], round(size * share))


def _remove(store: Store, choice: Choice, signal: schema.Signal) -> None:
    where = _filled(choice.condition(signal), choice.params)
    store.command(f"ALTER TABLE {signal.table} DELETE WHERE {where} {SYNC}")
    for made in signal.made:
        gone = f"TraceId NOT IN (SELECT TraceId FROM {signal.table})"
        store.command(f"ALTER TABLE {made} DELETE WHERE {gone} {SYNC}")


SYNC = "SETTINGS mutations_sync = 2"


def _filled(where: str, params: dict[str, object]) -> str:
    """Put the values into the SQL: a mutation is written down and has no parameters."""
    for name, value in params.items():
        kind = "Int64" if isinstance(value, int) else "String"
        text = str(value).replace("\\", "\\\\").replace("'", "\\'")
        where = where.replace(f"{{{name}:{kind}}}", f"'{text}'" if kind == "String" else text)
    return where


def days_ago(days: float) -> datetime:
    """Give the moment that was so many days ago."""
    now = datetime.now(UTC).timestamp()
    return datetime.fromtimestamp(now - days * 86_400, UTC)
