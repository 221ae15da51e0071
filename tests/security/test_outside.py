"""Queries without a key reach no file, host or program outside the store."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.http_requests import ask
from tests.security.servers import Up, collector

from ltrain_collector.access import Keys, Role
from ltrain_collector.admin import backup, restore
from ltrain_collector.store import Store

SECRET = "a line that only the owner of this machine reads"
TABLE = "CREATE TABLE otel.page (a String) ENGINE"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    (folder / "secret").write_text(SECRET)
    with collector(folder / "home") as running:
        yield running


def denied(up: Up, sql: str, path: str = "/") -> bool:
    """Return whether the statement is refused without revealing anything about the file."""
    sql = sql.replace("FILE", str(up.home.parent / "secret"))
    answer = ask(up.sql, "POST", path.replace("FILE", str(up.home.parent / "secret")), sql)
    assert SECRET not in answer.text
    return answer.status == 403 and "Without an admin key" in answer.text


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM file('FILE', 'LineAsString')",
        "SELECT file('FILE')",
        "SELECT `file`('FILE')",
        "SELECT file/* */('FILE')",
        "SELECT arrayMap(file, ['FILE'])",
        "SELECT * APPLY(file) FROM (SELECT 'FILE')",
        "WITH (SELECT file('FILE')) AS f SELECT f",
        "SELECT 1 WHERE 'a' IN (SELECT * FROM file('FILE', 'LineAsString'))",
        "SELECT * FROM view(SELECT file('FILE'))",
        "SELECT * FROM loop(url('http://127.0.0.1:9/'))",
        "SELECT * FROM remote('127.0.0.1:9', otel.otel_traces)",
        "SELECT * FROM executable('x.sh', TSV, 'a String')",
        "SELECT * FROM sqlite('FILE', 't')",
        "SELECT * FROM eval('SELECT file(1)')",
        "SELECT hasColumnInTable('127.0.0.1:9', 'u', 'p', 'd', 't', 'c')",
        "SELECT 1 SETTINGS additional_table_filters = {'system.one': 'file(''FILE'') != '''''}",
        "EXPLAIN SELECT * FROM url('http://127.0.0.1:9/')",
        "DESCRIBE TABLE url('http://127.0.0.1:9/')",
        "DESCRIBE TABLE (SELECT * FROM file('FILE', 'LineAsString'))",
        "INSERT INTO FUNCTION file('FILE') SELECT 'x'",
        "INSERT INTO FUNCTION url('http://127.0.0.1:9/') VALUES ('x')",
        "INSERT INTO otel.otel_trace_executions SELECT file('FILE'), '', '', ''",
        "INSERT INTO otel.otel_trace_executions VALUES (file('FILE'), '', '', '')",
        "INSERT INTO otel.otel_trace_executions VALUES (`file`('FILE'), '', '', '')",
        "INSERT INTO otel.otel_trace_executions SETTINGS format_schema='x' FORMAT TSV\na",
        f"{TABLE} = File(TSV)",
        f"{TABLE} = URL('http://127.0.0.1:9/', TSV)",
        f"{TABLE} = Distributed('c', 'otel', 'otel_traces')",
        f"{TABLE} = Kafka('127.0.0.1:9', 't', 'g', 'TSV')",
        f"{TABLE} = ReplicatedMergeTree('/x', 'y') ORDER BY a",
        f"{TABLE} = MergeTree ORDER BY a SETTINGS disk = disk(type = 'web', endpoint = 'http://x')",
        f"{TABLE} = MergeTree ORDER BY a SETTINGS storage_policy = 's3'",
        f"{TABLE} = Memory AS SELECT * FROM file('FILE', 'LineAsString')",
        "CREATE TABLE otel.page AS url('http://127.0.0.1:9/')",
        "CREATE TABLE otel.page (a String DEFAULT file('FILE')) ENGINE = Memory",
        "CREATE TABLE otel.page ON CLUSTER c (a String) ENGINE = Memory",
        "ATTACH TABLE otel.page FROM 'FILE' (a String) ENGINE = MergeTree ORDER BY a",
        "CREATE VIEW otel.page AS SELECT * FROM file('FILE', 'LineAsString')",
        "CREATE MATERIALIZED VIEW otel.page REFRESH EVERY 1 SECOND ENGINE = Memory AS "
        "SELECT * FROM url('http://127.0.0.1:9/')",
        "CREATE DICTIONARY otel.page (a UInt64) PRIMARY KEY a LAYOUT(FLAT()) LIFETIME(1) "
        "SOURCE(HTTP(url 'http://127.0.0.1:9/' format 'TSV'))",
        "CREATE DATABASE page ENGINE = Filesystem('/etc')",
        "CREATE DATABASE page ENGINE = MySQL('127.0.0.1:9', 'd', 'u', 'p')",
        "CREATE NAMED COLLECTION page AS url = 'http://127.0.0.1:9/'",
        "CREATE FUNCTION page AS (x) -> file(x)",
        "ALTER TABLE otel.otel_traces ADD COLUMN page String DEFAULT file('FILE')",
        "ALTER TABLE otel.otel_traces UPDATE SpanName = file('FILE') WHERE 1",
        "ALTER TABLE otel.otel_traces FETCH PARTITION 1 FROM '/x'",
        "BACKUP DATABASE otel TO S3('http://127.0.0.1:9/b', 'k', 's')",
        "BACKUP DATABASE otel TO Disk('default', 'b')",
        "BACKUP DATABASE otel TO File('b') SETTINGS base_backup = S3('http://127.0.0.1:9/')",
        "RESTORE DATABASE otel FROM S3('http://127.0.0.1:9/b', 'k', 's')",
        "SET format_schema = 'FILE'",
        "SELECT 1 PARALLEL WITH SELECT file('FILE')",
        "EXECUTE AS default SELECT file('FILE')",
    ],
)
def test_what_leaves_the_store_needs_an_admin_key(up: Up, sql: str) -> None:
    assert denied(up, sql)
    assert denied(up, sql, "/?session_id=s")


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO otel.otel_trace_executions FROM INFILE 'FILE' FORMAT TSV",
        "SELECT 1 INTO OUTFILE 'FILE.out'",
        "INSERT INTO otel.otel_trace_executions (a /*) SETTINGS log_comment='*/) SELECT "
        "file(\\'FILE\\') --' FORMAT TSV\nx",
        "INSERT INTO otel.otel_trace_executions SETTINGS log_comment=1; SELECT 1 INTO OUTFILE "
        "'FILE.out' FORMAT TSV\nx",
        "INSERT INTO otel.otel_trace_executions SETTINGS log_comment=1--\nFROM INFILE 'FILE' "
        "FORMAT TSV\nx",
    ],
)
def test_no_statement_names_a_file_of_its_own(up: Up, sql: str) -> None:
    answer = up.run(sql.replace("FILE", str(up.home.parent / "secret")))
    assert answer.status >= 400 and SECRET not in answer.text
    assert not (up.home.parent / "secret.out").exists()
    assert SECRET not in up.run("SELECT * FROM otel.otel_trace_executions").text


def test_a_url_names_no_file_in_a_setting(up: Up) -> None:
    assert denied(up, "SELECT 1", "/?format_schema=FILE")
    rows = "INSERT INTO otel.otel_trace_executions FORMAT TSV\n"
    assert denied(up, rows, "/?format_schema=FILE")
    assert up.blocked()["denied"] >= 2


OF_THE_OWNER = [
    "CREATE DATABASE mine",
    "CREATE TABLE mine.t (`a b` String, c Int64) ENGINE = ReplacingMergeTree ORDER BY c "
    "TTL toDateTime(c) SETTINGS index_granularity = 1024",
    "INSERT INTO mine.t VALUES ('file', 1), (lower('URL'), 2)",
    "INSERT INTO `mine`.`t` (`a b`, c) SETTINGS async_insert=0, log_comment='x' FORMAT TSV\n"
    "file('x')\t3\n",
    "INSERT INTO mine.t SELECT concat('url(', toString(number)), number FROM numbers(4, 2)",
    "ALTER TABLE mine.t ADD COLUMN d String DEFAULT upper(`a b`)",
    "CREATE VIEW mine.v AS SELECT * FROM mine.t WHERE c IN (SELECT c FROM mine.t)",
    "CREATE FUNCTION mine AS (x) -> lower(x)",
    "SELECT mine(`a b`), domain('http://x/y'), file FROM (SELECT *, 1 AS file FROM mine.v)",
    "SELECT * FROM merge('mine', '^t$')",
    "SELECT * FROM format(JSONEachRow, '{\"a\": 1}')",
    "DESCRIBE TABLE (SELECT * FROM mine.v)",
    "DESCRIBE mine.t",
    "SHOW CREATE TABLE mine.t",
    "OPTIMIZE TABLE mine.t FINAL",
    "RENAME TABLE mine.t TO mine.u",
    "DROP DATABASE mine",
]
"""Statements that run one after another."""


def test_the_store_itself_is_its_owners(up: Up) -> None:
    for sql in OF_THE_OWNER:
        answer = up.run(sql, **up.owner)
        assert answer.status == 200, (sql, answer.text)


def test_a_backup_and_a_restore_of_a_running_store(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(up.home))
    with Store.open(up.dsn) as store:
        assert backup(store, tmp_path / "copy.tar") > 0
        restore(store, tmp_path / "copy.tar")
        store.migrate()


def test_an_admin_key_opens_them(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    key, _ = Keys(tmp_path / "home" / "store").make_key(Role.ADMIN)
    with collector(tmp_path / "home") as up:
        sql = f"SELECT * FROM file('{tmp_path / 'secret'}', 'LineAsString')"
        assert SECRET in up.run(sql, Authorization=f"Bearer {key}").text
        created = "/?query=CREATE+TABLE+otel.page+(a+Int8)+ENGINE=Memory&readonly=0"
        answer = ask(up.sql, "GET", created, headers={"Authorization": f"Bearer {key}"})
        assert answer.status >= 400


def test_a_folder_of_its_own_is_not_restricted(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    with Store.open(f"chdb://{tmp_path}/store") as store:
        found = store.query(f"SELECT line FROM file('{tmp_path}/secret', 'LineAsString')")
        assert found["line"].to_list() == [SECRET]
