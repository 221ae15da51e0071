"""`make docs`: the ClickHouse statements of `otel-config/`, read from a new store.

Nothing is told twice: whatever tables and views a new store has, a single server gets as they are,
and a cluster gets each table as two, a replicated `…_local` on every shard and a Distributed one
under the table's own name, so that exporters, views and readers need not know.

A row's copies must meet on one shard, or nothing would ever deduplicate them. So the shard is
chosen by columns of the sorting key alone: the rollout, else the trace, else the whole key.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ltrain_collector import schema
from ltrain_collector.store import Store

FOLDER = Path(__file__).resolve().parent.parent / "otel-config" / "clickhouse"
ON = "ON CLUSTER '{cluster}'"
DEFINER = "DEFINER = CURRENT_USER SQL SECURITY DEFINER"
HEAD = "-- Made from what the collector makes in a new store, by `make docs`; changes go there.\n\n"

READ = """
SELECT name, engine, sorting_key AS key, formatQuery(create_table_query) AS made,
    if(as_select = '', '', formatQuery(as_select)) AS selects
FROM system.tables WHERE database = 'otel' ORDER BY name
"""
COLUMNS = """
SELECT name, is_in_sorting_key = 1 AS keyed, default_kind AS kind,
    concat('`', name, '` ', type, ' ', default_kind, ' ', default_expression) AS said,
    compression_codec AS codec
FROM system.columns WHERE database = 'otel' AND table = {table:String} ORDER BY position
"""
ENGINE = re.compile(r"\bENGINE = (\w*MergeTree)(?:\(([^)]*)\))?")


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or view of the store."""

    name: str
    engine: str
    key: str
    """The sorting key of a table, `a, b, c`."""
    made: str
    """The statement that makes it."""
    selects: str
    """The query of a view."""
    later: tuple[tuple[str, str], ...] = ()
    """Columns of a table that an older one may lack, and their codecs."""
    rows: str = ""
    """What a new store's table holds: columns and values, as INSERT has them."""

    @property
    def rank(self) -> int:
        return {"MaterializedView": 1, "View": 2}.get(self.engine, 0)

    def reads(self, other: "Relation") -> bool:
        return re.search(rf"\botel\.{other.name}\b", self.selects) is not None


def relations() -> list[Relation]:
    """Give what a new store has, each after what it reads."""
    with TemporaryDirectory() as folder, Store.open(f"chdb://{folder}/store") as store:
        store.migrate()
        found = [Relation(**row) for row in store.query(READ).to_dicts()]
        left = [each if each.rank else _filled(each, store) for each in found]
    left.sort(key=lambda each: each.rank)
    made: list[Relation] = []
    while left:
        ready = next(each for each in left if not any(map(each.reads, left)))
        left.remove(ready)
        made.append(ready)
    return made


def _filled(each: Relation, store: Store) -> Relation:
    columns = store.query(COLUMNS, {"table": each.name}).to_dicts()
    later = tuple(
        (column["said"], column["codec"])
        for column in columns
        if column["kind"] == "MATERIALIZED" and not column["keyed"]
    )
    given = ", ".join(column["name"] for column in columns if not column["kind"])
    values = f"SELECT trimRight(formatRow('Values', {given})) FROM otel.{each.name} ORDER BY ALL"
    rows = ",\n".join(store.query(values).to_series()) if "otel_" not in each.name else ""
    return replace(each, later=later, rows=rows and f"({given}) VALUES\n{rows}")


def single(found: list[Relation]) -> Iterator[str]:
    """Give the statements for one server."""
    yield "CREATE DATABASE IF NOT EXISTS otel"
    yield from _renamed_views()
    for each in found:
        if each.engine == "View":
            yield f"CREATE OR REPLACE VIEW otel.{each.name} AS\n{each.selects}"
        elif each.engine == "MaterializedView":
            yield _materialized(each)
        else:
            yield each.made.replace("CREATE TABLE ", "CREATE TABLE IF NOT EXISTS ", 1)
            yield from _altered(f"otel.{each.name}", each, codecs=True)
            yield from _inserted(each)


def cluster(found: list[Relation]) -> Iterator[str]:
    """Give the statements for a cluster, which are run once, on any node of it."""
    yield f"CREATE DATABASE IF NOT EXISTS otel {ON}"
    yield from (f"{drop} {ON}" for drop in _renamed_views())
    for each in found:
        if each.engine == "View":
            yield f"CREATE OR REPLACE VIEW otel.{each.name} {ON} AS\n{each.selects}"
        elif each.engine == "MaterializedView":
            # it works on the rows of its own shard
            local = re.sub(r"\b(TO|FROM) otel\.(\w+)", r"\1 otel.\2_local", _materialized(each))
            yield local.replace(f"otel.{each.name}", f"otel.{each.name} {ON}", 1)
        else:
            yield from _spread(each)


def _renamed_views() -> Iterator[str]:
    """Yield the statements that drop the views which have another name now."""
    for statement in schema.read_statements(schema.RENAMED_VIEWS):
        yield statement.partition("\n")[2].removesuffix(";")


def _materialized(each: Relation) -> str:
    target = re.search(r"\bTO otel\.(\w+)", each.made)
    if target is None:
        raise ValueError(f"otel.{each.name} has no table of its own to write to (TO …).")
    head = f"CREATE MATERIALIZED VIEW IF NOT EXISTS otel.{each.name}"
    # whoever inserts needs no right to read, which the view does
    return f"{head}\nTO otel.{target[1]}\n{DEFINER} AS\n{each.selects}"


def _spread(each: Relation) -> Iterator[str]:
    engine = ENGINE.search(each.made)
    if engine is None:
        raise ValueError(f"otel.{each.name} is of no MergeTree engine, which alone is replicated.")
    arguments = f"'/clickhouse/tables/{{shard}}/otel/{each.name}', '{{replica}}'"
    arguments += f", {engine[2]}" if engine[2] else ""
    local = each.made.replace(
        f"CREATE TABLE otel.{each.name}",
        f"CREATE TABLE IF NOT EXISTS otel.{each.name}_local {ON}",
        1,
    )
    yield local.replace(engine[0], f"ENGINE = Replicated{engine[1]}({arguments})")
    yield (
        f"CREATE TABLE IF NOT EXISTS otel.{each.name} {ON} AS otel.{each.name}_local\n"
        f"ENGINE = Distributed('{{cluster}}', otel, {each.name}_local,\n    {shard(each.key)})"
    )
    yield from _altered(f"otel.{each.name}_local {ON}", each, codecs=True)
    yield from _altered(f"otel.{each.name} {ON}", each, codecs=False)
    yield from _inserted(each)


def _altered(table: str, each: Relation, codecs: bool) -> Iterator[str]:
    """Give what brings an older table to these columns."""
    if each.later:
        lines = (
            f"    ADD COLUMN IF NOT EXISTS {said}{f' {codec}' if codecs and codec else ''}"
            for said, codec in each.later
        )
        yield f"ALTER TABLE {table}\n" + ",\n".join(lines)


def _inserted(each: Relation) -> Iterator[str]:
    if each.rows:
        yield f"INSERT INTO otel.{each.name} {each.rows}"


def shard(key: str) -> str:
    """Give the expression that deals rows to shards, for a table with this sorting key."""
    chosen = f"cityHash64({key})"
    for column in ("TraceId", "RolloutId"):
        if column in key.split(", "):
            chosen = f"if({column} != '', cityHash64({column}), {chosen})"
    return chosen


def files() -> dict[str, str]:
    """Give the text of each file below `otel-config/clickhouse`, by its name."""
    found = relations()
    made = {"single/tables.sql": single(found), "cluster/tables.sql": cluster(found)}
    return {name: HEAD + ";\n\n".join(each) + ";\n" for name, each in made.items()}


def main() -> None:
    for name, text in files().items():
        path = FOLDER / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"otel-config/clickhouse/{name}")


if __name__ == "__main__":
    main()
