"""`make docs`: write the ClickHouse statements of `otel-config/`, read from a new store.

A single server gets the tables and views of a new store as they are. A cluster gets two tables for
each: a replicated `…_local` on every shard, and a Distributed table under the original name, so
exporters, views and queries are the same on both.

All copies of a row must be on one shard to be deduplicated. So only columns of the sorting key
choose the shard: the rollout, else the trace, else the whole key.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ltrain_collector import promoted_columns, schema
from ltrain_collector.store import Store

FOLDER = Path(__file__).resolve().parent.parent / "otel-config" / "clickhouse"
ON = "ON CLUSTER '{cluster}'"
DEFINER = "DEFINER = CURRENT_USER SQL SECURITY DEFINER"
HEAD = "-- Made by `make docs` from the schema of a new store; change the schema instead.\n\n"

READ = """
SELECT name, engine, sorting_key AS key, formatQuery(create_table_query) AS statement,
    if(as_select = '', '', formatQuery(as_select)) AS selects
FROM system.tables WHERE database = 'otel' ORDER BY name
"""
COLUMNS = """
SELECT name, is_in_sorting_key = 1 AS keyed, default_kind AS kind,
    concat('`', name, '` ', type, ' ', default_kind, ' ', default_expression) AS definition,
    compression_codec AS codec
FROM system.columns WHERE database = 'otel' AND table = {table:String} ORDER BY position
"""
CHANGED = {column.name for column in promoted_columns.PROMOTED if column.since}
"""Columns that an older table may have with another expression."""
ENGINE = re.compile(r"\bENGINE = (\w*MergeTree)(?:\(([^)]*)\))?")


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or view of the store."""

    name: str
    engine: str
    key: str
    """The sorting key of a table, `a, b, c`."""
    statement: str
    """The statement that creates it."""
    selects: str
    """The query of a view."""
    later: tuple[tuple[str, str], ...] = ()
    """Definitions of the columns that an older table may lack, and their codecs."""
    rows: str = ""
    """The initial rows of a table: columns and values of an INSERT."""

    @property
    def rank(self) -> int:
        return {"MaterializedView": 1, "View": 2}.get(self.engine, 0)

    def reads(self, other: "Relation") -> bool:
        return re.search(rf"\botel\.{other.name}\b", self.selects) is not None


def relations() -> list[Relation]:
    """Return the tables and views of a new store, each after those that it reads."""
    with TemporaryDirectory() as folder, Store.open(f"chdb://{folder}/store") as store:
        store.migrate()
        unordered = [Relation(**row) for row in store.query(READ).to_dicts()]
        remaining = [
            each if each.rank else _with_columns_and_rows(each, store) for each in unordered
        ]
    remaining.sort(key=lambda each: each.rank)
    ordered: list[Relation] = []
    while remaining:
        ready = next(each for each in remaining if not any(map(each.reads, remaining)))
        remaining.remove(ready)
        ordered.append(ready)
    return ordered


def _with_columns_and_rows(each: Relation, store: Store) -> Relation:
    columns = store.query(COLUMNS, {"table": each.name}).to_dicts()
    later = tuple(
        (column["definition"], column["codec"])
        for column in columns
        if column["kind"] == "MATERIALIZED" and not column["keyed"]
    )
    inserted = ", ".join(column["name"] for column in columns if not column["kind"])
    values = f"SELECT trimRight(formatRow('Values', {inserted})) FROM otel.{each.name} ORDER BY ALL"
    rows = ",\n".join(store.query(values).to_series()) if "otel_" not in each.name else ""
    return replace(each, later=later, rows=rows and f"({inserted}) VALUES\n{rows}")


def single_server(stored: list[Relation]) -> Iterator[str]:
    """Yield the statements for a single server."""
    yield "CREATE DATABASE IF NOT EXISTS otel"
    yield from _renamed_views()
    for each in stored:
        if each.engine == "View":
            yield f"CREATE OR REPLACE VIEW otel.{each.name} AS\n{each.selects}"
        elif each.engine == "MaterializedView":
            yield _materialized(each)
        else:
            yield each.statement.replace("CREATE TABLE ", "CREATE TABLE IF NOT EXISTS ", 1)
            yield from _altered(f"otel.{each.name}", each, codecs=True)
            yield from _inserted(each)


def cluster(stored: list[Relation]) -> Iterator[str]:
    """Yield the statements for a cluster, which run once, on any node."""
    yield f"CREATE DATABASE IF NOT EXISTS otel {ON}"
    yield from (f"{drop} {ON}" for drop in _renamed_views())
    for each in stored:
        if each.engine == "View":
            yield f"CREATE OR REPLACE VIEW otel.{each.name} {ON} AS\n{each.selects}"
        elif each.engine == "MaterializedView":
            # it reads and writes the rows of its own shard
            local = re.sub(r"\b(TO|FROM) otel\.(\w+)", r"\1 otel.\2_local", _materialized(each))
            yield local.replace(f"otel.{each.name}", f"otel.{each.name} {ON}", 1)
        else:
            yield from _spread(each)


def _renamed_views() -> Iterator[str]:
    """Yield the statements that drop the views which have another name now."""
    for statement in schema.read_statements(schema.RENAMED_VIEWS):
        yield statement.partition("\n")[2].removesuffix(";")


def _materialized(each: Relation) -> str:
    target = re.search(r"\bTO otel\.(\w+)", each.statement)
    if target is None:
        raise ValueError(
            f"The materialized view otel.{each.name} has no target table. Add TO otel.<table>."
        )
    head = f"CREATE MATERIALIZED VIEW IF NOT EXISTS otel.{each.name}"
    # the definer reads, so a user who inserts needs no right to read
    return f"{head}\nTO otel.{target[1]}\n{DEFINER} AS\n{each.selects}"


def _spread(each: Relation) -> Iterator[str]:
    engine = ENGINE.search(each.statement)
    if engine is None:
        raise ValueError(
            f"The engine of otel.{each.name} is not a MergeTree, so it cannot be replicated."
        )
    arguments = f"'/clickhouse/tables/{{shard}}/otel/{each.name}', '{{replica}}'"
    arguments += f", {engine[2]}" if engine[2] else ""
    local = each.statement.replace(
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
    """Yield the ALTERs that add missing columns to an older table and change the others."""
    later = [
        f"{definition}{f' {codec}' if codecs and codec else ''}" for definition, codec in each.later
    ]
    changed = [definition for definition in later if definition.split("`")[1] in CHANGED]
    for change, definitions in (("ADD COLUMN IF NOT EXISTS", later), ("MODIFY COLUMN", changed)):
        if definitions:
            lines = (f"    {change} {definition}" for definition in definitions)
            yield f"ALTER TABLE {table}\n" + ",\n".join(lines)


def _inserted(each: Relation) -> Iterator[str]:
    if each.rows:
        yield f"INSERT INTO otel.{each.name} {each.rows}"


def shard(key: str) -> str:
    """Return the sharding expression of a table with this sorting key."""
    expression = f"cityHash64({key})"
    for column in ("TraceId", "RolloutId"):
        if column in key.split(", "):
            expression = f"if({column} != '', cityHash64({column}), {expression})"
    return expression


def files() -> dict[str, str]:
    """Return the text of each file below `otel-config/clickhouse`, by its name."""
    stored = relations()
    statements = {
        "single/tables.sql": single_server(stored),
        "cluster/tables.sql": cluster(stored),
    }
    return {name: HEAD + ";\n\n".join(each) + ";\n" for name, each in statements.items()}


def main() -> None:
    for name, text in files().items():
        path = FOLDER / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"otel-config/clickhouse/{name}")


if __name__ == "__main__":
    main()
