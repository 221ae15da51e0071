"""Third-party clients: clickhouse-connect, curl, and the requests of Grafana's data source."""

import asyncio
import gzip
import json
import subprocess
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import clickhouse_connect
import psutil
import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError
from clickhouse_connect.driver.external import ExternalData
from tests import http_requests

from ltrain_collector.access import Keys, Role

SLOW = "SELECT count() FROM numbers(100000000000) WHERE sipHash64(number) = 1"


@pytest.fixture
def client(up: Any) -> Iterator[Client]:
    with clickhouse_connect.get_client(host="127.0.0.1", port=up.sql, password=up.key) as opened:
        opened.command("DROP TABLE IF EXISTS default.c")
        opened.command(
            "CREATE TABLE default.c (id UInt64, s String, t DateTime64(9), a Array(String)) "
            "ENGINE = MergeTree ORDER BY id"
        )
        yield opened


def ask(up: Any, sql: str, method: str = "POST", **fields: str) -> http_requests.Answer:
    """Send a request with the owner's key."""
    url = "/?" + urlencode(fields if method == "POST" else {**fields, "query": sql})
    body = sql if method == "POST" else None
    return http_requests.ask(up.sql, method, url, body, {"X-ClickHouse-Key": up.key}, timeout=60)


def curl(*argv: str, stdin: bytes = b"") -> str:
    done = subprocess.run(["curl", "-sS", *argv], input=stdin, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_every_way_to_insert_and_to_query(client: Client) -> None:
    names = ["id", "s"]
    client.insert("c", [[1, "rows"]], column_names=names)
    client.insert("c", [[2], ["columns"]], column_names=names, column_oriented=True)
    client.insert_arrow("c", pa.table({"id": pa.array([3], pa.uint64()), "s": ["arrow"]}))
    client.raw_insert("c", names, b'{"id":4,"s":"raw"}\n', fmt="JSONEachRow")
    sql = "SELECT id, s FROM c ORDER BY id"
    rows = [(1, "rows"), (2, "columns"), (3, "arrow"), (4, "raw")]
    assert client.query(sql).result_rows == rows
    assert client.query_arrow(sql).to_pylist() == [{"id": n, "s": s} for n, s in rows]
    assert client.query_np(sql)["s"].tolist() == ["rows", "columns", "arrow", "raw"]
    assert client.query_df(sql)["id"].tolist() == [1, 2, 3, 4]
    assert client.query_df_arrow(sql, dataframe_library="polars").rows() == rows
    with client.query_column_block_stream(sql) as blocks:
        assert [s for block in blocks for s in block[1]] == ["rows", "columns", "arrow", "raw"]
    with client.query_rows_stream(sql) as stream:
        assert list(stream) == rows
    with client.query_arrow_stream(sql) as batches:
        assert sum(batch.num_rows for batch in batches) == 4
    assert client.raw_query(sql, fmt="CSV") == b'1,"rows"\n2,"columns"\n3,"arrow"\n4,"raw"\n'


def test_the_asynchronous_client(up: Any, client: Client) -> None:
    async def work() -> list[Any]:
        opened = await clickhouse_connect.get_async_client(
            host="127.0.0.1", port=up.sql, password=up.key
        )
        async with opened:
            await opened.insert("c", [[n, str(n)] for n in range(100)], column_names=["id", "s"])
            await opened.insert_arrow("c", pa.table({"id": pa.array([100], pa.uint64())}))
            counted = await opened.query("SELECT count() FROM c WHERE id > {n:UInt8}", {"n": 1})
            arrow = await opened.query_arrow("SELECT id FROM c WHERE id < 2 ORDER BY id")
            blocks = await opened.query_row_block_stream("SELECT number FROM numbers(300000)")
            total = 0
            async with blocks:
                async for block in blocks:
                    total += len(block)
            with pytest.raises(DatabaseError, match="Code: 47"):
                await opened.query("SELECT no FROM c")
        return [counted.result_rows, arrow.to_pylist(), total]

    assert asyncio.run(work()) == [[(99,)], [{"id": 0}, {"id": 1}], 300_000]


def test_a_session_keeps_its_settings(up: Any) -> None:
    with clickhouse_connect.get_client(
        host="127.0.0.1", port=up.sql, password=up.key, session_id="keeps"
    ) as client:
        client.command("SET max_threads = 3")
        client.command("CREATE TEMPORARY TABLE scratch (a UInt8)")
        client.command("SET max_block_size = 77")
        client.insert("scratch", [[1], [2]], column_names=["a"])
        assert client.query("SELECT sum(a) FROM scratch").result_rows == [(3,)]
        assert client.query_arrow("SELECT a FROM scratch ORDER BY a").to_pylist() == [
            {"a": 1},
            {"a": 2},
        ]
        sql = "SELECT getSetting('max_threads'), getSetting('max_block_size')"
        own = {"max_threads": 5}
        assert client.query(sql, settings=own).result_rows == [(5, 77)]
        assert client.query(sql).result_rows == [(3, 77)]
        assert client.query("SELECT {x:UInt8}", {"x": 4}).result_rows == [(4,)]
    with clickhouse_connect.get_client(host="127.0.0.1", port=up.sql) as other:
        assert other.query(sql).result_rows != [(3, 77)]
        with pytest.raises(DatabaseError, match="Code: 60"):
            other.query("SELECT * FROM scratch")


def test_a_session_has_its_database(up: Any) -> None:
    for sql in ("USE otel", "SET max_threads = 2"):
        assert ask(up, sql, session_id="uses").status == 200
    assert ask(up, "SELECT currentDatabase()", session_id="uses").body == b"otel\n"
    assert ask(up, "SELECT currentDatabase()", session_id="uses", database="system").body == (
        b"system\n"
    )
    assert ask(up, "SELECT currentDatabase()", session_id="uses", database="default").body == (
        b"default\n"
    )
    assert ask(up, "SELECT currentDatabase()").body == b"default\n"


def test_what_fails_to_be_set_is_not_kept(up: Any) -> None:
    answer = ask(up, "SET no_such_setting = 1", session_id="fails")
    assert (answer.status, answer.headers["X-ClickHouse-Exception-Code"]) == (404, "115")
    assert ask(up, "SELECT 1", session_id="fails").body == b"1\n"


def test_a_session_has_one_query_at_a_time(up: Any) -> None:
    statuses: list[int] = []
    held = threading.Thread(
        target=lambda: statuses.append(
            ask(up, f"{SLOW} SETTINGS max_execution_time = 3", session_id="l").status
        )
    )
    before = running(up)
    held.start()
    wait_until(lambda: running(up) == before + 1)
    answer = ask(up, "SELECT 1", session_id="l")
    assert answer.headers["X-ClickHouse-Exception-Code"] == "373"
    assert b"Session is locked by a concurrent client" in answer.body
    assert ask(up, "SELECT 1", session_id="other").body == b"1\n"
    held.join()
    assert statuses == [408]
    assert ask(up, "SELECT 1", session_id="l").body == b"1\n"


def test_a_session_ends(up: Any) -> None:
    fields = {"session_id": "ends", "session_timeout": "1"}
    threads = "SELECT getSetting('max_threads')"
    assert ask(up, "SET max_threads = 61", **fields).status == 200
    assert ask(up, threads, **fields).body == b"61\n"
    until = time.monotonic() + 20
    while time.monotonic() < until:
        time.sleep(1.1)  # longer than it lives
        if ask(up, threads, **fields).body != b"61\n":
            break
    else:
        pytest.fail("it never ended")
    for wrong in ("0", "3601", "x"):
        answer = ask(up, "SELECT 1", session_id="e", session_timeout=wrong)
        assert answer.headers["X-ClickHouse-Exception-Code"] == "374"


def test_one_request_is_one_statement(up: Any, client: Client) -> None:
    status, body, _ = ask(up, "SELECT 1; DROP TABLE default.c")
    assert (status, b"Multi-statements are not allowed" in body) == (400, True)
    status, body, _ = ask(up, "SELECT 1 INTO OUTFILE '/tmp/ltrain-never'")
    assert (status, body.startswith(b"Code: 348")) == (500, True)
    assert client.command("SELECT count() FROM c") == 0


def test_the_query_id_comes_back(up: Any) -> None:
    answer = ask(up, "SELECT 1", query_id="mine")
    assert answer.headers["X-ClickHouse-Query-Id"] == "mine"
    assert ask(up, "SELECT no", query_id="mine").headers["X-ClickHouse-Query-Id"] == "mine"


@pytest.mark.parametrize("field", ["query_id", "default_format"])
def test_a_header_is_not_ended_by_what_the_url_says(up: Any, field: str) -> None:
    for sql in ("SELECT 1", "SELECT no"):
        answer = ask(up, sql, **{field: "TSV\r\nX-Forged: 1\r\n\r\n\u00e9"})
        assert "X-Forged" not in answer.headers


@pytest.mark.parametrize(
    ("sql", "status", "code"),
    [
        ("SELEC 1", 400, "62"),
        ("SELECT no", 404, "47"),
        ("SELECT * FROM no", 404, "60"),
        ("SELECT * FROM no.no", 404, "81"),
        ("SELECT nosuch(1)", 404, "46"),
        ("SELECT toUInt8('x')", 400, "6"),
        ("SELECT 1 FORMAT Nosuch", 404, "73"),
        ("SELECT sleep(3) SETTINGS max_execution_time = 1", 408, "159"),
        ("SELECT number FROM numbers(1000000) SETTINGS max_result_rows = 5", 500, "396"),
        ("SELECT number FROM numbers(1000000) SETTINGS max_result_bytes = 5", 500, "396"),
        ("SELECT 1 SETTINGS nosuch = 1", 404, "115"),
        ("SELECT throwIf(1)", 500, "395"),
    ],
)
def test_errors_have_clickhouses_code_and_status(up: Any, sql: str, status: int, code: str) -> None:
    answer = ask(up, sql)
    assert (answer.status, answer.headers["X-ClickHouse-Exception-Code"]) == (status, code)
    assert answer.body.startswith(f"Code: {code}. DB::Exception: ".encode())


def test_curl_queries_and_inserts(up: Any, client: Client, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{up.sql}/"
    assert curl(url) == "Ok.\n"
    assert curl(f"{url}?query=SELECT%201") == "1\n"
    assert curl(url, "--data-binary", "SELECT\n  1,\n  2;\n") == "1\t2\n"
    assert curl(url, "-d", "SELECT 1 AS a FORMAT JSONEachRow") == '{"a":1}\n'
    assert curl(f"{url}?default_format=JSONEachRow", "-d", "SELECT 1 AS a") == '{"a":1}\n'
    assert curl(url, "-H", "X-ClickHouse-Format: CSV", "-d", "SELECT 'a'") == '"a"\n'
    assert curl(f"{url}?param_x=a%27b", "-d", "SELECT {x:String}") == "a\\'b\n"
    assert curl(f"{url}?database=otel&user=me", "-d", "SELECT currentDatabase()") == ("otel\n")
    assert curl("--user", "me:", url, "-d", "SELECT 1") == "1\n"
    assert json.loads(curl(url, "-d", "SELECT 1 AS a FORMAT JSON"))["data"] == [{"a": 1}]
    key = ("-H", f"X-ClickHouse-Key: {up.key}")
    for form, text in (
        ("CSV", b'1,"a"\n'),
        ("TSV", b"2\tb\n"),
        ("JSONEachRow", b'{"id":3,"s":"c"}\n'),
        ("CSVWithNames", b'id,s\n4,"d"\n'),
        ("Values", b"(5,'e')"),
    ):
        (tmp_path / "rows").write_bytes(text)
        into = quote(f"INSERT INTO default.c (id, s) FORMAT {form}")
        assert curl(f"{url}?query={into}", *key, "--data-binary", f"@{tmp_path}/rows") == ""
    packed = gzip.compress(b'6,"f"\n', mtime=0)
    into = quote("INSERT INTO default.c (id, s) FORMAT CSV")
    gzipped = ("-H", "Content-Encoding: gzip", "--data-binary", "@-")
    assert curl(f"{url}?query={into}", *key, *gzipped, stdin=packed) == ""
    assert curl(url, *key, "-d", "INSERT INTO default.c (id, s) VALUES (7, 'g')") == ""
    assert curl(url, *key, "--compressed", "-d", "SELECT s FROM default.c ORDER BY id") == (
        "a\nb\nc\nd\ne\nf\ng\n"
    )


def test_a_get_only_reads(up: Any, client: Client) -> None:
    for sql in (
        "INSERT INTO default.c (id) VALUES (1)",
        "INSERT INTO default.c (id) FORMAT CSV\n1\n",
        "DROP TABLE default.c",
        "CREATE TABLE default.d (a Int) ENGINE = Memory",
    ):
        answer = ask(up, sql, "GET")
        assert answer.headers["X-ClickHouse-Exception-Code"] == "164", sql
    assert client.command("SELECT count() FROM c") == 0


@pytest.mark.parametrize(
    "form",
    [
        *("CSVWithNames", "TSVWithNames", "TSVWithNamesAndTypes", "CSVWithNamesAndTypes"),
        *("JSONCompactEachRow", "JSONCompactEachRowWithNames", "TSVRaw", "JSONStringsEachRow"),
    ],
)
def test_a_format_with_a_head_has_it_once(up: Any, form: str) -> None:
    name = '`a "\n`' if form.startswith("CSV") else '`a "`'
    sql = f"SELECT number AS n, toString(number) AS {name} FROM numbers(200000) FORMAT {form}"
    lines = ask(up, sql).text.splitlines()
    heads = 2 if "Types" in form else 1 if "Names" in form else 0
    heads += form.startswith("CSV")
    assert len(lines) == 200_000 + heads
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "lz4"])
def test_responses_are_compressed_as_requested(up: Any, encoding: str) -> None:
    sql = "SELECT number FROM numbers(100000)"
    answer = http_requests.ask(up.sql, "POST", "/", sql, {"Accept-Encoding": encoding}, timeout=60)
    assert answer.headers["Content-Encoding"] == encoding
    plain = ask(up, sql).body
    assert len(answer.body) < len(plain) * 0.8
    assert unpacked(answer.body, encoding) == plain


def unpacked(body: bytes, encoding: str) -> bytes:
    import zlib

    import lz4.frame
    from backports import zstd

    if encoding == "lz4":
        return bytes(lz4.frame.decompress(body))
    if encoding == "zstd":
        return bytes(zstd.decompress(body))
    return zlib.decompress(body, 31 if encoding == "gzip" else 15)


def test_a_body_that_decompresses_to_too_much_is_refused(up: Any) -> None:
    from backports import zstd

    body = zstd.compress(bytes(1 << 20)) * 1100
    headers = {"Content-Encoding": "zstd"}
    assert http_requests.ask(up.sql, "POST", "/", body, headers, timeout=60).status == 413


@pytest.mark.parametrize(
    ("fields", "headers", "status", "says"),
    [
        ({"compress": "1"}, {}, 501, "Accept-Encoding"),
        ({"decompress": "1"}, {}, 400, "LZ4 blocks"),
        ({"session_check": "1"}, {}, 403, "session_check"),
        ({"role": "admin"}, {}, 403, "role"),
        ({"quota_key": "k"}, {}, 403, "quota_key"),
        ({}, {"Content-Encoding": "br"}, 415, "gzip, deflate, lz4, zstd"),
        ({}, {"Content-Encoding": "gzip"}, 400, "not valid gzip"),
    ],
)
def test_what_is_not_served_is_reported(
    up: Any, fields: dict[str, str], headers: dict[str, str], status: int, says: str
) -> None:
    url = "/?" + urlencode(fields)
    answer = http_requests.ask(up.sql, "POST", url, b"SELECT 1", headers, timeout=60)
    assert (answer.status, says in answer.text) == (status, True)


def test_external_data_is_refused_with_a_sentence(client: Client) -> None:
    rows = ExternalData(file_name="x", data=b"1\n", fmt="CSV", structure=["a Int32"])
    with pytest.raises(DatabaseError, match=r"External data .* is not supported"):
        client.query("SELECT * FROM x", external_data=rows)


def test_a_query_that_is_no_text_is_refused(up: Any) -> None:
    sql = b"SELECT '\xff\xfe'"
    assert http_requests.ask(up.sql, "POST", "/", sql, timeout=60).status == 400


@pytest.mark.parametrize("form", ["TSV", "ArrowStream", "JSON"])
def test_a_client_that_disconnects_ends_its_query(up: Any, form: str) -> None:
    before = running(up)
    connection = HTTPConnection("127.0.0.1", up.sql, timeout=60)
    key = {"X-ClickHouse-Key": up.key}
    connection.request("POST", "/", f"{SLOW} FORMAT {form}", key)
    wait_until(lambda: running(up) == before + 1)
    connection.close()
    wait_until(lambda: running(up) == before)


def running(up: Any) -> int:
    sql = "SELECT count() FROM system.processes WHERE query LIKE '%sipHash64(number)%'"
    return int(ask(up, f"{sql} AND query NOT LIKE '%processes%'").body)


def wait_until(met: Any, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_answers_stream_in_bounded_memory(up: Any) -> None:
    """Each response is 800 MB or more; the server's memory grows by less than 300 MB."""
    server = psutil.Process(up.pid)
    wide = "SELECT concat(toString(number), repeat('x', 1000)) AS s FROM numbers(800000)"
    for form in ("ArrowStream", "JSONEachRow", "CSVWithNames"):
        before = server.memory_info().rss
        connection = HTTPConnection("127.0.0.1", up.sql, timeout=60)
        connection.request("POST", "/?max_block_size=8192", f"{wide} FORMAT {form}")
        answer = connection.getresponse()
        size = grown = 0
        while part := answer.read(1 << 22):
            size += len(part)
            grown = max(grown, server.memory_info().rss - before)
        connection.close()
        assert size > 800_000_000
        assert grown < 300 << 20, form


def test_a_result_that_is_not_streamed_is_limited(up: Any) -> None:
    sql = "SELECT concat(toString(number), repeat('x', 1000)) FROM numbers(800000) FORMAT JSON"
    answer = ask(up, sql)
    assert (answer.status, answer.headers["X-ClickHouse-Exception-Code"]) == (500, "396")
    assert b"LTRAIN_ADMIN_LIMITS=memory=" in answer.body


class Grafana:
    """What grafana/clickhouse-datasource 4 sends over HTTP: clickhouse-go v2.47, Native, gzip."""

    REVISION = 54460

    def __init__(self, port: int, password: str = "") -> None:
        self._port = port
        self._login = b64encode(f"default:{password}".encode()).decode()
        self.revision = self.REVISION

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        url = urlencode(
            {
                "client_protocol_version": self.REVISION,
                "database": "otel",
                "default_format": "Native",
                "enable_http_compression": "1",
                "max_execution_time": "60",
            }
        )
        headers = {"Accept-Encoding": "gzip", "Authorization": f"Basic {self._login}"}
        answer = http_requests.ask(
            self._port, "POST", f"/?{url}", sql.encode(), headers, timeout=60
        )
        if answer.status != 200:
            raise RuntimeError(answer.text)
        assert answer.headers["Content-Encoding"] == "gzip"
        return self._rows(gzip.decompress(answer.body))

    def _rows(self, body: bytes) -> list[tuple[object, ...]]:
        """Decode as `Block.Decode` of clickhouse-go does: the format depends on the revision."""
        rows: list[tuple[object, ...]] = []
        at = 0

        def number() -> int:
            nonlocal at
            value = shift = 0
            while True:
                byte = body[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value

        def take(size: int) -> bytes:
            nonlocal at
            at += size
            return body[at - size : at]

        while at < len(body):
            if self.revision > 0:
                assert (number(), take(1), number(), take(4), number())[-1] == 0
            columns, count = number(), number()
            made: list[list[object]] = []
            for _ in range(columns):
                take(number())
                kind = take(number()).decode()
                if self.revision >= 54454:
                    assert take(1) == b"\0"
                if kind == "String":
                    made.append([take(number()).decode() for _ in range(count)])
                else:
                    size = {"UInt8": 1, "UInt32": 4, "UInt64": 8}[kind]
                    made.append([int.from_bytes(take(size), "little") for _ in range(count)])
            rows += zip(*made, strict=True)
        return rows


@pytest.mark.parametrize("keyed", [False, True])
def test_grafanas_data_source(up: Any, start: Any, tmp_path: Path, keyed: bool) -> None:
    if keyed:
        key, _ = Keys(tmp_path / "store").make_key(Role.QUERY, "grafana")
        grafana = Grafana(start(tmp_path / "store").sql, key)
    else:
        grafana = Grafana(up.sql)
    hello = "SELECT displayName(), version(), revision(), timezone()"
    [(_, version, revision, _)] = grafana.ask(hello)
    assert revision == 0
    grafana.revision = 0  # as it was told
    assert grafana.ask("SELECT 1") == [(1,)]
    assert grafana.ask("SELECT version()") == [(version,)]
    assert ("spans",) in grafana.ask(
        "SELECT name FROM system.tables WHERE database = 'otel' ORDER BY name"
    )
    assert ("otel",) in grafana.ask("SELECT name FROM system.databases")
    assert len(grafana.ask("SELECT number, toString(number) FROM numbers(200000)")) == 200_000
    with pytest.raises(RuntimeError, match="Code: 60"):
        grafana.ask("SELECT * FROM nosuch")
