"""A key that may read sees the tables of the traces, and no other ones."""

import signal
from collections.abc import Iterator

import clickhouse_connect
import pytest
from tests.security.keyed import Keyed, start


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """A server whose administrator has a table, a view and a function outside the traces."""
    opened = start(tmp_path_factory.mktemp("visible") / "store")
    for sql in (
        "CREATE TABLE default.zebra (plumage String) ENGINE = MergeTree ORDER BY plumage",
        "CREATE VIEW otel.all_tables AS SELECT database, name FROM system.tables",
        "CREATE FUNCTION zebra_function AS (x) -> x + 1",
    ):
        assert opened.ask("admin", sql).status == 200
    yield opened
    assert opened.up.stop(signal.SIGTERM) == 0


def test_a_read_key_sees_no_table_outside_otel(keyed: Keyed) -> None:
    shows = ["SHOW TABLES FROM default", "SHOW DATABASES", "SHOW FULL TABLES FROM default"]
    shows += ["SHOW COLUMNS FROM zebra FROM default", "SHOW INDEX FROM zebra FROM default"]
    names = keyed.ask(
        "admin",
        "SELECT concat(database, '.', name) FROM system.tables WHERE "
        "lower(database) = 'information_schema'",
    ).text.split()
    system = ("tables", "columns", "databases", "parts", "parts_columns", "completions")
    names += [f"system.{name}" for name in (*system, "functions", "data_skipping_indices")]
    selects = [f"SELECT * FROM {name}" for name in (*names, "otel.all_tables")]
    for sql in shows + selects:
        answer = keyed.ask("one", sql)
        assert answer.status == 200, answer.text
        for word in ("zebra", "plumage"):
            assert word not in answer.text, sql
    assert keyed.ask("one", "SHOW DATABASES").text == "otel\n"
    assert "zebra" in keyed.ask("admin", "SELECT name FROM system.tables").text
    assert "otel_traces" in keyed.ask("one", "SHOW TABLES").text


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count() FROM (SELECT * FROM system.tables) WHERE name = 'zebra'",
        "SELECT count() FROM system.one JOIN system.tables AS t ON 1 WHERE t.name = 'zebra'",
        "WITH t AS (SELECT name FROM system.tables) SELECT count() FROM t WHERE name = 'zebra'",
        "SELECT ('default', 'zebra') IN (SELECT database, name FROM system.tables)",
        "SELECT count() FROM system.columns AS tables WHERE tables.table = 'zebra'",
        "SELECT (SELECT count() FROM system.tables WHERE name = 'zebra')",
        "SELECT count() FROM information_schema.columns WHERE column_name = 'plumage'",
        "SELECT count() FROM otel.all_tables WHERE name = 'zebra'",
        "SELECT count() FROM system.tables WHERE name = 'zebra' "
        "UNION DISTINCT SELECT count() FROM system.databases WHERE name = 'default'",
        "SELECT count() FROM merge('system', '^tables$') WHERE name = 'zebra'",
        "SELECT count() FROM `system`.`tables` WHERE name = 'zebra'",
    ],
)
def test_no_question_about_other_tables_is_answered(keyed: Keyed, sql: str) -> None:
    assert keyed.ask("one", sql).text == "0\n" or keyed.ask("one", sql).status == 403


@pytest.mark.parametrize(
    "sql",
    [
        *("SHOW MERGES", "SHOW MERGES LIKE 'a'", "show /**/ merges limit 1", "SHOW CLUSTERS"),
        *("SHOW CLUSTER 'x'", "SHOW FILESYSTEM CACHES", "SHOW CLUSTERS FORMAT JSON"),
        *("EXPLAIN SHOW MERGES", "SHOW FUNCTIONS", "SHOW PROCESSLIST", "SHOW GRANTS"),
        *("SELECT * FROM (SHOW MERGES)", "SELECT * FROM system.merges"),
    ],
)
def test_what_no_filter_covers_is_not_shown(keyed: Keyed, sql: str) -> None:
    assert keyed.ask("one", sql).status in (400, 403)


@pytest.mark.parametrize(
    "sql",
    [
        *("SHOW TABLES LIKE '%e%' LIMIT 3", "SHOW TABLES NOT ILIKE 'x' FORMAT JSON"),
        *("SHOW FULL TABLES FROM otel", "SHOW FULL COLUMNS FROM spans FROM otel"),
        *("SHOW EXTENDED INDEX FROM otel_traces FROM otel", "SHOW CHANGED SETTINGS LIKE 'max%'"),
        *("SHOW TABLES WHERE name != 'x'", "SHOW TEMPORARY TABLES", "SHOW DICTIONARIES"),
    ],
)
def test_what_clients_ask_to_be_shown_is_shown(keyed: Keyed, sql: str) -> None:
    answer = keyed.ask("one", sql)
    assert answer.status == 200, answer.text


@pytest.mark.parametrize(
    "sql",
    [
        "DESCRIBE TABLE default.zebra",
        "DESCRIBE TABLE otel.zebra",
        "SHOW CREATE TABLE default.zebra",
        "SHOW CREATE TABLE otel.zebr",
        "SHOW CREATE DATABASE default",
        "EXISTS TABLE default.zebra",
        "SELECT * FROM default.zebra",
        "SELECT * FROM otel.zebr",
        "SELECT * FROM zebra",
        "SELECT plumage FROM otel.spans",
    ],
)
def test_an_error_names_no_other_table(keyed: Keyed, sql: str) -> None:
    answer = keyed.ask("one", sql)
    assert answer.status in (403, 404, 500)
    assert answer.text.count("default.zebra") <= sql.count("default.zebra")


def test_stock_clients_go_on_working(keyed: Keyed) -> None:
    with clickhouse_connect.get_client(
        host="127.0.0.1", port=keyed.up.sql, username="r", password=keyed.keys["two"]
    ) as client:
        assert client.query("SELECT count() FROM otel.spans").result_rows == [(1,)]
        sql = "SELECT name FROM system.columns WHERE database = 'otel' AND table = 'spans'"
        assert ("TraceId",) in client.query(sql).result_rows
        assert client.command("SELECT version()")
    grafana = "SELECT name FROM system.databases UNION ALL SELECT name FROM system.tables"
    assert "evaluations" in keyed.ask("two", grafana, max_execution_time="60").text
