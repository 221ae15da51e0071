"""Count the new rows of a batch: those that the store does not hold yet.

A store recognises a duplicate by the sorting key of its table. The key of log records and data
points has a hash that ClickHouse computes from all columns, so a batch is first inserted into a
table in memory that has the same computed columns.
"""

from contextlib import AbstractContextManager
from uuid import uuid4

from ltrain_collector import schema
from ltrain_collector.store import Store

PREFIX = "import_"
"""How the names of these tables begin."""

SORTING_KEY = (
    "SELECT sorting_key FROM system.tables WHERE database = {database:String} "
    "AND name = {name:String} AND engine LIKE '%ReplacingMergeTree'"
)
LEFTOVERS = (
    f"SELECT name FROM system.tables WHERE database = 'otel' AND startsWith(name, '{PREFIX}') "
    "AND engine = 'Memory' AND metadata_modification_time < now() - INTERVAL 1 DAY"
)
"""Tables of imports that were killed; no import takes a day."""


class Staging(AbstractContextManager["Staging"]):
    """The tables in memory of one import; they are dropped when it ends."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._id = uuid4().hex
        self._keys: dict[str, str] = {}
        """The sorting key of each table; '' for one that keeps duplicates."""
        for name in store.query(LEFTOVERS)["name"]:
            store.command(f"DROP TABLE IF EXISTS otel.{name}")

    def count_new(self, table: str, payload: bytes, rows: int) -> int:
        """Return how many of the rows in `payload` are new; a repeated row counts once.

        All rows are new for a table that keeps duplicates, as one that an exporter created.
        """
        key = self._key(table)
        if not key:
            return rows
        staging = self._name(table)
        self._store.insert_rows(schema.insert_target(table, into=staging), payload)
        own = f"SELECT {key} FROM {staging}"
        stored = f"SELECT {key} FROM {table} WHERE ({key}) IN ({own})"
        new = f"SELECT DISTINCT {key} FROM {staging} WHERE ({key}) NOT IN ({stored})"
        count = int(self._store.query(f"SELECT count() FROM ({new})").item())
        self._store.command(f"TRUNCATE TABLE {staging}")
        return count

    def __exit__(self, *_: object) -> None:
        for table, key in self._keys.items():
            if key:
                self._store.command(f"DROP TABLE IF EXISTS {self._name(table)}")

    def _key(self, table: str) -> str:
        """Return the sorting key of a table; the first call creates its table in memory."""
        if table not in self._keys:
            database, _, name = table.partition(".")
            keys = self._store.query(SORTING_KEY, {"database": database, "name": name})
            self._keys[table] = str(keys.item()) if keys.height else ""
            if self._keys[table]:
                self._store.command(f"CREATE TABLE {self._name(table)} AS {table} ENGINE = Memory")
        return self._keys[table]

    def _name(self, table: str) -> str:
        database, _, name = table.partition(".")
        return f"{database}.{PREFIX}{self._id}_{name}"
