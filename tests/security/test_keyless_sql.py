"""Without a key the SQL port has the policy of a query key; the owner's commands sign keys."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import clickhouse_connect
import polars as pl
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.fork_server import ltrain_command
from tests.http_requests import Answer, ask, post
from tests.security.servers import Up, collector

from ltrain_collector.access import sign_bound, sign_owner, sign_service, store_secret
from ltrain_collector.errors import NotOwner
from ltrain_collector.query.limits import READER_THREADS
from ltrain_collector.store import Store
from ltrain_instrument.identity import Identity

TABLES = "SELECT database, name, create_table_query FROM system.tables WHERE database != 'system'"
OTHERS = "SELECT 'function', name FROM system.functions WHERE origin != 'System'"
ROWS = (
    "SELECT TraceId, SpanName, ResourceAttributes FROM otel.otel_traces ORDER BY ALL",
    "SELECT * FROM otel.victim ORDER BY ALL",
    "SELECT name FROM system.databases ORDER BY ALL",
    f"SELECT * FROM ({TABLES} AND NOT is_temporary) ORDER BY ALL",
    f"{OTHERS} ORDER BY ALL",
)
WAIT = 180.0
BUDGET = {
    "max_memory_usage": 2 << 30,
    "max_execution_time": 300,
    "max_rows_to_read": 10_000_000_000,
    "max_temporary_data_on_disk_size_for_query": 4 << 30,
    "max_threads": READER_THREADS,
}
"""The limits of a query without an admin key."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A store without keys; its owner made a table, and one outside `otel` that writes into it."""
    with collector(tmp_path_factory.mktemp("up") / "home") as running:
        post(running.otlp, span(1, "by nobody"))
        for sql in (
            "CREATE TABLE otel.victim (a String, n Int64) ENGINE = MergeTree ORDER BY n",
            "INSERT INTO otel.victim VALUES ('kept', 1)",
            "CREATE TABLE default.buffer (a String, n Int64) "
            "ENGINE = Buffer(otel, victim, 1, 1, 1, 1, 1, 1, 1)",
            "CREATE TABLE default.source (a String, n Int64) ENGINE = MergeTree ORDER BY n",
            "CREATE MATERIALIZED VIEW default.flow TO otel.victim AS SELECT * FROM default.source",
        ):
            assert running.run(sql, **running.owner).status == 200
        yield running


def span(number: int, name: str, sender: str = "") -> bytes:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    if sender:
        resource.resource.attributes.add(key="ltrain.sender").value.string_value = sender
    added = resource.scope_spans.add().spans.add(name=name)
    added.trace_id, added.span_id = number.to_bytes(16, "big"), number.to_bytes(8, "big")
    added.start_time_unix_nano = 1_790_000_000_000_000_000
    return bytes(request.SerializeToString())


def state(up: Up) -> list[str]:
    """Return everything that a statement could have changed."""
    answers = [up.run(sql, **up.owner) for sql in ROWS]
    assert [answer.status for answer in answers] == [200] * len(ROWS)
    return [answer.text for answer in answers]


SPAN = (
    "INSERT INTO otel.otel_traces (Timestamp, TraceId, SpanId, SpanName, ResourceAttributes) "
    "{how} SELECT now64(9), repeat('f', 32), repeat('f', 16), 'gen_ai.evaluation.result', "
    "map('ltrain.sender', 'service')"
)
FORGED = [
    SPAN.format(how=""),
    SPAN.format(how="SETTINGS async_insert = 1, wait_for_async_insert = 0"),
    f"WITH 1 AS x {SPAN.format(how='')}",
    f"/* SELECT 1 */ {SPAN.format(how='')}",
    f"SELECT 1; {SPAN.format(how='')}",
    f"EXPLAIN PLAN {SPAN.format(how='')}",
    f"SELECT 1 PARALLEL WITH {SPAN.format(how='')}",
    f"EXECUTE AS default {SPAN.format(how='')}",
    "INSERT INTO otel.otel_traces (TraceId, ResourceAttributes) VALUES ('f', {'a': 'b'})",
    'INSERT INTO otel.otel_traces FORMAT JSONEachRow\n{"TraceId": "f", "SpanName": "forged"}\n',
    "INSERT INTO `otel`.`victim` (a) FORMAT TSV\nforged\n",
    'INSERT INTO "otel"."victim" (a) VALUES (\'forged\')',
    "INSERT INTO TABLE otel.victim SELECT 'forged', 2",
    "INSERT INTO victim SELECT 'forged', 2",
    "INSERT INTO victim FORMAT CSV\nforged,2\n",
    "INSERT INTO FUNCTION merge('otel', '^victim$') SELECT 'forged', 2",
    "INSERT INTO FUNCTION remote('127.0.0.1', otel.victim) SELECT 'forged', 2",
    "INSERT INTO default.buffer VALUES ('forged', 2)",
    "INSERT INTO default.source VALUES ('forged', 2)",
    "INSERT INTO otel.spans (TraceId) VALUES ('f')",
]
CHANGED = [
    "CREATE TABLE otel.mine (a Int8) ENGINE = Memory",
    "CREATE OR REPLACE TABLE otel.victim (a Int8) ENGINE = Memory",
    "CREATE TABLE default.copy CLONE AS otel.victim",
    "CREATE TABLE default.door (a String, n Int64) "
    "ENGINE = Buffer(otel, victim, 1, 0, 0, 0, 0, 0, 0)",
    "CREATE TABLE default.door ENGINE = Alias('otel', 'victim')",
    "CREATE TABLE default.door ENGINE = Merge('otel', '^victim$')",
    "CREATE TEMPORARY TABLE door (a String, n Int64) "
    "ENGINE = Buffer(otel, victim, 1, 0, 0, 0, 0, 0, 0)",
    "CREATE TEMPORARY TABLE door AS SELECT 1 AS a",
    "CREATE MATERIALIZED VIEW default.door TO otel.victim AS SELECT 'forged' AS a, 2 AS n",
    "CREATE MATERIALIZED VIEW default.door REFRESH EVERY 1 SECOND APPEND TO otel.victim AS "
    "SELECT 'forged' AS a, 2 AS n",
    "CREATE OR REPLACE VIEW otel.spans AS SELECT 1",
    "CREATE FUNCTION startsWithAny AS (x) -> 1",
    "CREATE DATABASE mine",
    "CREATE DICTIONARY default.d (n Int64) PRIMARY KEY n "
    "SOURCE(CLICKHOUSE(DB 'otel' TABLE 'victim')) LAYOUT(FLAT()) LIFETIME(0)",
    "ALTER TABLE otel.victim UPDATE a = 'forged' WHERE 1",
    "ALTER TABLE victim DELETE WHERE 1 SETTINGS mutations_sync = 2",
    "ALTER TABLE otel.victim MODIFY COLUMN a DEFAULT 'forged'",
    "ALTER TABLE otel.victim ATTACH PARTITION tuple() FROM default.source",
    "ALTER TABLE default.source MOVE PARTITION tuple() TO TABLE otel.victim",
    "ALTER TABLE otel.victim DROP PARTITION tuple()",
    "DELETE FROM otel.victim WHERE 1",
    "UPDATE otel.victim SET a = 'forged' WHERE 1",
    "DROP TABLE otel.victim SYNC",
    "DROP DATABASE otel SYNC",
    "UNDROP TABLE otel.victim",
    "TRUNCATE TABLE otel.victim",
    "TRUNCATE ALL TABLES FROM otel",
    "RENAME TABLE otel.victim TO otel.gone",
    "RENAME DATABASE otel TO gone",
    "EXCHANGE TABLES otel.victim AND default.source",
    "OPTIMIZE TABLE otel.victim FINAL",
    "DETACH TABLE otel.victim",
    "ATTACH TABLE otel.gone UUID '00000000-0000-0000-0000-000000000001' (a Int8) ENGINE = Memory",
    "BACKUP DATABASE otel TO File('stolen')",
    "RESTORE DATABASE otel FROM File('stolen') SETTINGS allow_non_empty_tables = 1",
    "SYSTEM STOP MERGES otel.victim",
    "SYSTEM FLUSH ASYNC INSERT QUEUE",
    "KILL QUERY WHERE 1",
    "KILL MUTATION WHERE 1",
    "SET ROLE NONE",
    "GRANT ALL ON otel.* TO default",
    "CREATE USER mine",
    "BEGIN TRANSACTION",
]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("sql", FORGED + CHANGED)
def test_nothing_is_written_without_a_key(up: Up, sql: str) -> None:
    before = state(up)
    in_session = "/?session_id=writer"
    answers = [
        up.run(sql),
        ask(up.sql, "POST", in_session, sql),
        ask(up.sql, "POST", "/?database=otel&readonly=0&allow_ddl=1", sql),
        up.run(sql, **{"X-ClickHouse-Database": "otel"}),
        ask(up.sql, "GET", "/?" + query(sql)),
    ]
    assert state(up) == before
    assert {answer.status >= 400 for answer in answers} == {True}, answers
    # what ClickHouse does not read, or does not explain, changes nothing either
    codes = {answer.headers["X-ClickHouse-Exception-Code"] for answer in answers}
    assert codes <= {"497", "62", "80"}


def query(sql: str) -> str:
    return urlencode({"query": sql, "readonly": "0"})


def test_rows_that_stand_in_the_body_are_refused_too(up: Up) -> None:
    before = state(up)
    for into in ("otel.victim", "`otel`.`victim`", "victim SETTINGS async_insert=1"):
        path = "/?database=otel&" + query(f"INSERT INTO {into} FORMAT TSV")
        assert ask(up.sql, "POST", path, "forged\t2\n").status == 403
    assert state(up) == before


def test_the_refusal_says_what_to_do_and_is_counted(up: Up) -> None:
    before = up.blocked()["denied"]
    text = up.run(CHANGED[0]).text
    assert text == (
        "Code: 497. DB::Exception: Without an admin key this store is read-only, so that no "
        "program forges or removes records of others. Send an admin key, which `ltrain key make "
        "admin` makes, or use an ltrain command as the store's owner. (ACCESS_DENIED)\n"
    )
    assert up.blocked()["denied"] == before + 1


def test_a_session_cannot_lift_the_policy(up: Up) -> None:
    """SET in a session cannot lift the read-only mode."""
    path = "/?session_id=door"
    for sql in ("SET readonly = 0", "SET allow_ddl = 1", "USE default"):
        ask(up.sql, "POST", path, sql)
    assert ask(up.sql, "POST", path, "SET dialect = 'kusto'").status == 403
    assert ask(up.sql, "POST", path, "SELECT getSetting('readonly')").text == "2\n"
    assert ask(up.sql, "POST", path, "SELECT a FROM victim").text == "kept\n"
    assert ask(up.sql, "POST", path, "SELECT 1 SETTINGS readonly = 0").status >= 400


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT a FROM otel.victim", "kept\n"),
        ("WITH v AS (SELECT * FROM otel.victim) SELECT a FROM v", "kept\n"),
        ("SELECT SpanName FROM otel.spans", "by nobody\n"),
        ("SHOW TABLES FROM otel LIKE 'victim'", "victim\n"),
        ("EXISTS TABLE otel.victim", "1\n"),
        ("DESCRIBE TABLE otel.victim", "a\tString\t\t\t\t\t\nn\tInt64\t\t\t\t\t\n"),
        ("SELECT count() FROM system.tables WHERE name = 'victim'", "1\n"),
        ("SELECT getSetting('max_block_size') SETTINGS max_block_size = 3", "3\n"),
    ],
)
@pytest.mark.parametrize("path", ["/", "/?session_id=reader", "/?readonly=1"])
def test_reading_needs_no_key(up: Up, sql: str, text: str, path: str) -> None:
    if path != "/?readonly=1" or "SETTINGS" not in sql:
        assert ask(up.sql, "POST", path, sql).text == text


def test_stock_clients_read_without_a_key(up: Up) -> None:
    with clickhouse_connect.get_client(host="127.0.0.1", port=up.sql, database="otel") as client:
        sql = "SELECT a, getSetting('max_block_size') AS n FROM victim"
        assert client.query(sql, settings={"max_block_size": 7}).result_rows == [("kept", 7)]
        assert client.query_arrow("SELECT a FROM victim").to_pylist() == [{"a": "kept"}]
        assert client.command("SELECT {x:String}", {"x": "a b"}) == "a b"
        client.command("SET max_threads = 1")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM default.source",
        "SELECT * FROM system.processes",
        "SELECT name FROM system.databases WHERE name = 'default'",
        "SELECT sleep(3)",
        "CHECK TABLE otel.victim",
        "USE default",
    ],
)
def test_the_policy_is_that_of_a_query_key(up: Up, sql: str) -> None:
    answer = up.run(sql)
    assert answer.text == "" or "Without an admin key" in answer.text


@pytest.mark.parametrize("setting", BUDGET)
@pytest.mark.parametrize("value", ["0", "1e15", "-1"])
def test_no_setting_raises_the_limits_of_a_query(up: Up, setting: str, value: str) -> None:
    sql, limit = f"SELECT getSetting('{setting}')", BUDGET[setting]
    for path in (f"/?{setting}={value}", f"/?session_id=budget&{setting}={value}"):
        answer = ask(up.sql, "POST", path, sql)
        assert answer.text == f"{limit}\n" or answer.status == 403
    for raised in (
        f"{sql} SETTINGS {setting} = {value}",
        f"SELECT * FROM ({sql}) SETTINGS {setting} = {value}",
        f"SET {setting} = {value}",
    ):
        assert ask(up.sql, "POST", "/?session_id=budget", raised).status == 403
    assert ask(up.sql, "POST", "/?session_id=budget", sql).text == f"{limit}\n"


def bearer(up: Up, key: str) -> Answer:
    return up.run("INSERT INTO otel.victim VALUES ('owned', 3)", Authorization=f"Bearer {key}")


def test_only_the_stores_own_secret_makes_an_owner(up: Up) -> None:
    before, secret = state(up), store_secret(up.home / "store")
    for key in (
        sign_owner("x" * 64, 600),
        sign_owner(secret, -1),
        sign_service(secret, 600),
        sign_bound(secret, Identity(run="r"), 600, rewards=True),
    ):
        assert bearer(up, key).status == 403
    assert state(up) == before
    assert bearer(up, sign_owner(secret, 600)).status == 200
    removed = "DELETE FROM otel.victim WHERE a = 'owned'"
    assert up.run(removed, **up.owner).status == 200


def test_the_secret_is_there_from_the_start_and_the_owners_alone(up: Up) -> None:
    assert (up.home / "store.secret").stat().st_mode & 0o777 == 0o600


def ltrain(home: Path, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith("LTRAIN_")
    }
    return subprocess.run(
        [ltrain_command(), *argv],
        env={**environment, "LTRAIN_HOME": str(home), **more},
        capture_output=True,
        text=True,
        timeout=WAIT,
    )


def test_the_owners_commands_need_no_made_key(tmp_path: Path) -> None:
    (tmp_path / "traces.json").write_text(json.dumps(TRACES))
    with collector(tmp_path / "home") as up:
        where = ("--store", up.dsn)
        for argv in (
            ("store", "migrate", *where),
            ("import", str(tmp_path / "traces.json"), *where),
            ("store", "backup", str(tmp_path / "copy.tar"), *where),
            ("store", "prune", "--run", "old", "--yes", *where),
        ):
            done = ltrain(up.home, *argv)
            assert done.returncode == 0, done.stderr
        assert up.run("SELECT count() FROM otel.spans").text == "0\n"


TRACES = {
    "resourceSpans": [
        {
            "resource": {"attributes": [{"key": "ltrain.run.id", "value": {"stringValue": "old"}}]},
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "0" * 31 + "1",
                            "spanId": "0" * 15 + "1",
                            "name": "imported",
                            "startTimeUnixNano": str(time.time_ns()),
                            "endTimeUnixNano": str(time.time_ns()),
                        }
                    ]
                }
            ],
        }
    ]
}


def test_another_homes_commands_read_and_change_nothing(up: Up, tmp_path: Path) -> None:
    (tmp_path / "traces.json").write_text(json.dumps(TRACES))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "store.secret").write_text("f" * 64)
    where, before = ("--store", up.dsn), state(up)
    for home, why in (("foreign", "is another store's"), ("empty", "is not here")):
        done = ltrain(tmp_path / home, "import", str(tmp_path / "traces.json"), *where)
        assert done.returncode == 1
        secret = tmp_path / home / "store.secret"
        assert f"the secret in the file {secret} {why}. Set LTRAIN_HOME to" in " ".join(
            done.stderr.split()
        )
        done = ltrain(tmp_path / home, "sql", "SELECT a FROM otel.victim", "--json", *where)
        assert json.loads(done.stdout) == [{"a": "kept"}], done.stderr
    assert not (tmp_path / "empty" / "store.secret").exists()
    assert state(up) == before


def test_a_store_in_python_is_changed_by_its_owner(
    up: Up, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = pl.DataFrame({"a": ["python"], "n": [4]})
    monkeypatch.delenv("LTRAIN_STORE_SECRET", raising=False)
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path))
    with Store.open(up.dsn) as store:
        with pytest.raises(NotOwner, match="is not here"):
            store.insert("otel.victim", rows)
        monkeypatch.setenv("LTRAIN_STORE_SECRET", "x" * 40)
        with pytest.raises(NotOwner, match="LTRAIN_STORE_SECRET is another store's"):
            store.insert("otel.victim", rows)
        assert store.query("SELECT a FROM otel.victim")["a"].to_list() == ["kept"]
        monkeypatch.setenv("LTRAIN_STORE_SECRET", (up.home / "store.secret").read_text())
        assert store.insert("otel.victim", rows) == 1
        assert store.query("SELECT count() AS n FROM otel.victim")["n"].item() == 2
        store.command("DELETE FROM otel.victim WHERE a = 'python'")
