"""A query key in the hands of an attacker."""

import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import clickhouse_connect
import pytest
from tests import http_requests
from tests.up import Up, start_up

from ltrain_collector.access import Keys, Role
from ltrain_collector.query.policy import REFUSED_FUNCTIONS

Asked = tuple[int, str, str]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, str, str]]:
    """A server, an admin key and a query key."""
    where = tmp_path_factory.mktemp("keyed") / "store"
    keys = Keys(where)
    admin, reader = (keys.make_key(role)[0] for role in (Role.ADMIN, Role.QUERY))
    up = start_up(where)
    ask(up, admin, "CREATE TABLE default.secret (a String) ENGINE = MergeTree ORDER BY a")
    ask(up, admin, "INSERT INTO default.secret VALUES ('hidden')")
    ask(up, admin, "CREATE TABLE otel.notes (a String) ENGINE = MergeTree ORDER BY a")
    ask(up, admin, "INSERT INTO otel.notes VALUES ('seen')")
    ask(up, admin, "CREATE VIEW otel.named AS SELECT * FROM otel.notes WHERE a = {which:String}")
    yield up, admin, reader
    assert up.stop(signal.SIGTERM) == 0


def ask(up: Up, key: str, sql: str, method: str = "POST", **fields: str) -> Asked:
    url = "/?" + urlencode({"database": "otel", **fields})
    answer = http_requests.ask(
        up.sql, method, url, sql.encode(), {"X-ClickHouse-Key": key}, timeout=60
    )
    code = answer.headers.get("X-ClickHouse-Exception-Code", "0")
    return answer.status, code, answer.text


@pytest.mark.parametrize(
    ("sql", "gives"),
    [
        ("SELECT a FROM otel.notes", "seen\n"),
        ("SELECT a FROM notes WHERE a IN (SELECT a FROM otel.notes)", "seen\n"),
        ("SELECT count() FROM otel.spans", "0\n"),
        ("WITH n AS (SELECT 1 AS x) SELECT x FROM n", "1\n"),
        ("SELECT a FROM otel.named(which = 'seen')", "seen\n"),
        ("SELECT sum(number) FROM numbers(4) SETTINGS max_threads = 1", "6\n"),
        ("SELECT number FROM system.numbers LIMIT 1", "0\n"),
        ("SELECT name FROM system.tables WHERE name = 'notes'", "notes\n"),
        ("SELECT count() FROM information_schema.tables WHERE table_name = 'notes'", "1\n"),
        ("SHOW TABLES FROM otel LIKE 'notes'", "notes\n"),
        ("DESCRIBE TABLE otel.notes", "a\tString\t\t\t\t\t\n"),
        ("DESC notes", "a\tString\t\t\t\t\t\n"),
        ("EXISTS TABLE otel.notes", "1\n"),
        ("EXPLAIN AST SELECT 1", "SelectWithUnionQuery"),
        ("EXPLAIN indexes = 1 SELECT a FROM otel.notes", "Output"),
        ("SELECT format('{}-{}', 'a', 'b')", "a-b\n"),
        ("SELECT 1;", "1\n"),
        ("SELECT count(input), count(output) FROM otel.llm_calls", "0\t0\n"),
        ("SELECT url, s3, view FROM (SELECT 1 AS url, 2 AS s3, 3 AS view)", "1\t2\t3\n"),
        ("SELECT airline FROM (SELECT 'x' AS airline)", "x\n"),
        ("/* why */ SELECT 1 -- ; DROP TABLE x", "1\n"),
        ("SELECT 'it''s \\'quoted\\' \\\\ and ; more'", "it\\'s \\'quoted\\' \\\\ and ; more\n"),
    ],
)
def test_what_a_reader_needs_is_served(keyed: tuple[Up, str, str], sql: str, gives: str) -> None:
    up, _, reader = keyed
    status, _, text = ask(up, reader, sql)
    assert (status, text[: len(gives)]) == (200, gives)


ATTACKS = [
    "SELECT * FROM file('{file}', 'LineAsString')",
    "SELECT * FROM fIlE('{file}', 'LineAsString')",
    "SELECT * FROM `file`('{file}', 'LineAsString')",
    "SELECT file('{file}')",
    "SELECT `file`('{file}')",
    "SELECT arrayMap(file, ['{file}'])",
    "SELECT arrayMap(x -> file(x), ['{file}'])",
    "SELECT * APPLY(file) FROM (SELECT '{file}' AS a)",
    "SELECT * APPLY(x -> file(x)) FROM (SELECT '{file}' AS a)",
    "SELECT * REPLACE(file('{file}') AS a) FROM (SELECT 1 AS a)",
    "SELECT 'canary' IN file('{file}', 'LineAsString')",
    "SELECT 1 WHERE 'canary' NOT IN (SELECT * FROM file('{file}', 'LineAsString'))",
    "SELECT (SELECT * FROM file('{file}', 'LineAsString'))",
    "SELECT 1 FROM otel.notes PREWHERE file('{file}') != ''",
    "SELECT 1 ORDER BY file('{file}')",
    "SELECT 1 GROUP BY 1 HAVING file('{file}') != ''",
    "SELECT 1 LIMIT length(file('{file}'))",
    "SELECT row_number() OVER (ORDER BY file('{file}'))",
    "WITH file('{file}') AS x SELECT x",
    "WITH x AS (SELECT * FROM file('{file}', 'LineAsString')) SELECT * FROM x",
    "SELECT 1 UNION ALL SELECT length(file('{file}'))",
    "SELECT 1 EXCEPT SELECT length(file('{file}'))",
    "SELECT 1 INTERSECT SELECT length(file('{file}'))",
    "FROM file('{file}', 'LineAsString') SELECT *",
    "SELECT * FROM default.`{file}`",
    "SELECT * FROM '{file}'",
    "SELECT 'canary' IN default.`{file}`",
    "SELECT * FROM otel.notes JOIN file('{file}', 'LineAsString') AS f ON 1",
    "SELECT * FROM otel.notes, file('{file}', 'LineAsString')",
    "SELECT * FROM view(SELECT * FROM file('{file}', 'LineAsString'))",
    "SELECT * FROM viewIfPermitted(SELECT 1 ELSE file('{file}', 'LineAsString'))",
    "SELECT * FROM loop(file('{file}', 'LineAsString'))",
    "SELECT * FROM eval('SELECT 1')",
    "SELECT * FROM (EXPLAIN SELECT * FROM file('{file}', 'LineAsString'))",
    "EXPLAIN SELECT * FROM file('{file}', 'LineAsString')",
    "EXPLAIN TABLE OVERRIDE mysql('127.0.0.1:1', 'd', 't', 'u', 'p') COLUMNS (x Int)",
    "DESCRIBE TABLE file('{file}', 'LineAsString')",
    "DESCRIBE (SELECT * FROM file('{file}', 'LineAsString'))",
    "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
    "SELECT * FROM urlCluster('x', 'http://127.0.0.1:1/', 'LineAsString')",
    "SELECT * FROM s3('http://127.0.0.1:1/b/k', 'LineAsString')",
    "SELECT * FROM remote('127.0.0.1:1', system.one)",
    "SELECT * FROM remoteSecure('127.0.0.1:1', system.one)",
    "SELECT * FROM cluster('default', default.secret)",
    "SELECT * FROM mysql('127.0.0.1:1', 'd', 't', 'u', 'p')",
    "SELECT * FROM postgresql('127.0.0.1:1', 'd', 't', 'u', 'p')",
    "SELECT * FROM sqlite('{file}', 't')",
    "SELECT * FROM executable('id', 'LineAsString', 'a String')",
    "SELECT * FROM python('os')",
    "SELECT * FROM filesystem('/')",
    "SELECT * FROM merge('default', '.*')",
    "SELECT * FROM merge(REGEXP('.*'), '.*')",
    "SELECT * FROM dictionary('x')",
    "SELECT * FROM format('Template', '')",
    "SELECT * FROM default.secret",
    "SELECT secret.a FROM default.secret AS secret",
    "SELECT * FROM {{t:Identifier}}",
    "SELECT 'hidden' IN default.secret",
    "SELECT joinGet('default.j', 'a', 1)",
    "SELECT dictGet('default.d', 'a', 1)",
    "SELECT hasColumnInTable('default', 'secret', 'a')",
    "SHOW CREATE TABLE default.secret",
    "DESCRIBE TABLE default.secret",
    "SELECT * FROM system.processes",
    "SELECT * FROM system.users",
    "SELECT * FROM system.server_settings",
    "SELECT * FROM system.named_collections",
    "SELECT * FROM system.stack_trace",
    "SELECT * FROM system.disks",
    "SELECT * FROM system.errors",
    "SHOW PROCESSLIST",
    "SHOW GRANTS",
    "SELECT aiGenerate('x')",
    "SELECT AIGENERATE('x')",
    "SELECT arrayMap(aiGenerate, ['x'])",
    "SELECT 1 SETTINGS max_memory_usage = 0",
    "SELECT getServerSetting('max_connections')",
    "SELECT sleep(3)",
    "SELECT 1 INTO OUTFILE '{out}'",
    "SELECT 1 INTO OUTFILE '{out}' FORMAT CSV",
    "SELECT 1 FORMAT CSV SETTINGS output_format_schema = '{out}'",
    "SELECT 1 SETTINGS format_template_row = '{file}' FORMAT Template",
    "SELECT 1 SETTINGS format_schema = '{file}:M'",
    "SELECT 1 SETTINGS dialect = 'kusto'",
    "SELECT * FROM (SELECT 1 SETTINGS allow_introspection_functions = 1)",
    "SELECT 1 SETTINGS readonly = 0",
    "SELECT 1 SETTINGS readonly = DEFAULT",
    "SELECT 1 SETTINGS max_memory_usage = DEFAULT",
    "SET readonly = DEFAULT",
    "SELECT 1; DROP TABLE otel.notes",
    "SELECT 1; SELECT * FROM file('{file}', 'LineAsString')",
    "SELECT 'a\\'; DROP TABLE otel.notes; --'; DROP TABLE otel.notes",
    "SELECT 1 PARALLEL WITH DROP TABLE otel.notes",
    "DROP TABLE otel.notes",
    "TRUNCATE TABLE otel.notes",
    "ALTER TABLE otel.notes DELETE WHERE 1",
    "OPTIMIZE TABLE otel.notes FINAL",
    "RENAME TABLE otel.notes TO otel.gone",
    "DELETE FROM otel.notes WHERE 1",
    "INSERT INTO otel.notes VALUES ('forged')",
    "INSERT INTO otel.notes SELECT 'forged'",
    "INSERT INTO otel.notes FORMAT CSV\nforged",
    "INSERT INTO FUNCTION file('{out}', 'CSV', 'a String') SELECT 'x'",
    "CREATE TABLE otel.t (a Int) ENGINE = URL('http://127.0.0.1:1/', 'CSV')",
    "CREATE TEMPORARY TABLE t (a Int)",
    "CREATE FUNCTION f AS x -> x",
    "CREATE DATABASE d",
    "ATTACH TABLE otel.gone",
    "DETACH TABLE otel.notes",
    "BACKUP TABLE otel.notes TO File('{out}')",
    "KILL QUERY WHERE 1",
    "SYSTEM SHUTDOWN",
    "SET readonly = 0",
    "SET format_schema = 'x'",
    "USE default",
    "GRANT ALL ON *.* TO default",
    "EXECUTE AS default SELECT 1",
    "CHECK TABLE otel.notes",
    "EXCHANGE TABLES otel.notes AND otel.gone",
    "SELECT * FROM otel.notes INTO OUTFILE '{out}' TRUNCATE",
]


@pytest.mark.parametrize("sql", ATTACKS)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_an_attacker_reads_nothing(
    keyed: tuple[Up, str, str], tmp_path: Path, sql: str, method: str
) -> None:
    up, admin, reader = keyed
    (tmp_path / "canary.txt").write_text("canary\n")
    out = tmp_path / "out"
    text = sql.format(file=tmp_path / "canary.txt", out=out)
    fields = {"param_t": "secret"} if "Identifier" in sql else {}
    status, code, message = ask(up, reader, text, method, **fields)
    assert status in (400, 403, 404, 500), message
    assert code != "0"
    assert "hidden" not in message
    assert "canary\n" not in message
    assert not out.exists()
    assert ask(up, admin, "SELECT a FROM otel.notes")[2] == "seen\n"


@pytest.mark.parametrize(
    "fields",
    [
        {"database": "default"},
        {"format_schema": "/etc/passwd:M"},
        {"format_template_row": "/etc/passwd"},
        {"allow_introspection_functions": "1"},
        {"dialect": "kusto"},
        {"user_files_path": "/"},
        {"database": "default`; DROP TABLE otel.notes; --"},
    ],
)
def test_the_url_opens_no_door(keyed: tuple[Up, str, str], fields: dict[str, str]) -> None:
    up, _, reader = keyed
    status, _, text = ask(up, reader, "SELECT a FROM secret", **fields)
    assert status in (403, 404)
    assert "hidden" not in text


def test_a_format_is_a_name(keyed: tuple[Up, str, str], tmp_path: Path) -> None:
    up, _, reader = keyed
    out = tmp_path / "out"
    for form in ("TSV; SELECT * FROM default.secret", f"TSV INTO OUTFILE '{out}'", "", "Nosuch"):
        for sql in ("SELECT 1", "SHOW TABLES"):
            status, code, text = ask(up, reader, sql, default_format=form)
            assert (status, code) == ((404, "73") if form else (200, "0")), form
            assert "hidden" not in text
    assert not out.exists()


def test_the_url_does_not_end_reading_only(keyed: tuple[Up, str, str]) -> None:
    up, _, reader = keyed
    sql = "SELECT getSetting('readonly')"
    assert ask(up, reader, sql, readonly="0")[2] == "2\n"
    memory = "SELECT getSetting('max_memory_usage')"
    assert ask(up, reader, memory)[2] == f"{2 << 30}\n"
    assert ask(up, reader, memory, max_memory_usage="0")[0] == 403
    in_session = {"session_id": "s"}
    assert ask(up, reader, "SET max_block_size = 3", **in_session)[0] == 200
    assert ask(up, reader, "SELECT getSetting('max_block_size')", **in_session)[2] == "3\n"
    assert ask(up, reader, "SET readonly = 0", **in_session)[0] in (200, 403)
    assert ask(up, reader, sql, **in_session)[2] == "2\n"


def test_a_session_belongs_to_its_key(keyed: tuple[Up, str, str]) -> None:
    up, admin, reader = keyed
    shared = {"session_id": "shared"}
    sql = "CREATE TEMPORARY TABLE mine AS SELECT 'hidden' AS a"
    assert ask(up, admin, sql, **shared)[0] == 200
    assert ask(up, admin, "SELECT a FROM mine", **shared)[2] == "hidden\n"
    status, code, _ = ask(up, reader, "SELECT a FROM mine", **shared)
    assert (status, code) == (404, "60")


def test_a_stock_client_reads(keyed: tuple[Up, str, str]) -> None:
    up, _, reader = keyed
    with clickhouse_connect.get_client(
        host="127.0.0.1", port=up.sql, username="reader", password=reader, database="otel"
    ) as client:
        sql = "SELECT getSetting('max_block_size')"
        assert client.query(sql, settings={"max_block_size": 7}).result_rows == [(7,)]
        assert client.query_arrow("SELECT a FROM notes").to_pylist() == [{"a": "seen"}]
        assert client.query("SELECT {x:String}", {"x": "a'b"}).result_rows == [("a'b",)]


def test_functions_that_ask_a_model_are_known(keyed: tuple[Up, str, str]) -> None:
    up, admin, _ = keyed
    sql = "SELECT name FROM system.functions WHERE categories = 'AI'"
    names = ask(up, admin, sql)[2].split()
    assert len(names) > 5
    assert [name for name in names if not REFUSED_FUNCTIONS.fullmatch(name)] == []


def test_a_readers_request_is_short(keyed: tuple[Up, str, str]) -> None:
    up, _, reader = keyed
    assert ask(up, reader, "SELECT 1 -- " + "x" * (17 << 20))[0] == 413
