import asyncio
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import clickhouse_connect
import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError, StreamFailureError
from tests.http_requests import ask

TABLE = (
    "CREATE TABLE default.t (id UInt64, s String, m Map(LowCardinality(String), String)) "
    "ENGINE = MergeTree ORDER BY id"
)


@pytest.fixture
def client(up: Any) -> Iterator[Client]:
    with clickhouse_connect.get_client(host="127.0.0.1", port=up.sql, password=up.key) as opened:
        opened.command("DROP TABLE IF EXISTS default.t")
        opened.command(TABLE)
        yield opened


def test_a_stock_client_inserts_and_queries(client: Client) -> None:
    rows = [[number, f"x{number}", {"a": str(number)}] for number in range(1000)]
    summary = client.insert("t", rows, column_names=["id", "s", "m"])
    assert summary.written_rows == 1000
    result = client.query("SELECT * FROM t ORDER BY id LIMIT 2").result_rows
    assert result == [(0, "x0", {"a": "0"}), (1, "x1", {"a": "1"})]


def test_parameters_of_both_kinds(client: Client) -> None:
    value = {"x": "a'b\\c\n"}
    assert client.query("SELECT {x:String}", parameters=value).result_rows == [("a'b\\c\n",)]
    assert client.query("SELECT %(x)s", parameters=value).result_rows == [("a'b\\c\n",)]
    many = {"ids": list(range(50_000))}
    assert client.query("SELECT length({ids:Array(UInt32)})", many).result_rows == [(50_000,)]


def test_settings_are_for_one_query(client: Client) -> None:
    sql = "SELECT getSetting('max_block_size')"
    assert client.query(sql, settings={"max_block_size": 7}).result_rows == [(7,)]
    assert client.query(sql).result_rows != [(7,)]


@pytest.mark.parametrize("compression", ["lz4", "zstd", "gzip", False])
def test_inserts_may_be_compressed(up: Any, client: Client, compression: str | bool) -> None:
    with clickhouse_connect.get_client(
        host="127.0.0.1", port=up.sql, password=up.key, compress=compression
    ) as other:
        other.insert("t", [[1, "q" * 1000, {}]], column_names=["id", "s", "m"])
    assert client.command("SELECT count() FROM t") == 1


def test_arrow_is_inserted_and_streamed(client: Client) -> None:
    client.insert_arrow("t", pa.table({"id": pa.array([9], pa.uint64()), "s": ["z"]}))
    assert client.query_arrow("SELECT id, s FROM t").to_pylist() == [{"id": 9, "s": "z"}]
    with client.query_arrow_stream("SELECT number FROM numbers(1000000)") as stream:
        sizes = [batch.num_rows for batch in stream]
    assert sum(sizes) == 1_000_000
    assert len(sizes) > 1


def test_rows_stream(client: Client) -> None:
    with client.query_row_block_stream("SELECT number FROM numbers(500000)") as stream:
        assert sum(len(block) for block in stream) == 500_000


def test_raw_rows_and_statements_insert(client: Client) -> None:
    client.raw_insert("t", ["id", "s"], b'1,"a"\n2,"b FORMAT CSV"\n', fmt="CSV")
    client.command("INSERT INTO t (id, s) VALUES (3, 'c FORMAT d')")
    client.command("INSERT INTO t SELECT number + 10, toString(number), map() FROM numbers(2)")
    assert client.query("SELECT s FROM t ORDER BY id").result_columns == [
        ["a", "b FORMAT CSV", "c FORMAT d", "0", "1"]
    ]


def test_the_database_is_the_clients(up: Any) -> None:
    with clickhouse_connect.get_client(host="127.0.0.1", port=up.sql, database="otel") as client:
        assert client.command("SELECT currentDatabase()") == "otel"
        client.query("SELECT count() FROM spans")


@pytest.mark.parametrize(
    ("sql", "code"),
    [("SELECT no FROM otel.spans", 47), ("SELEC 1", 62), ("SELECT 1 FROM no", 60)],
)
def test_errors_are_clickhouses_own(client: Client, sql: str, code: int) -> None:
    with pytest.raises(DatabaseError, match=f"Code: {code}"):
        client.query(sql)


def test_a_failed_insert_leaves_nothing(client: Client) -> None:
    with pytest.raises(DatabaseError, match="Code: "):
        client.raw_insert("t", ["id", "s"], b"1,a\nnot-a-number,b\n", fmt="CSV")
    assert client.command("SELECT count() FROM t") == 0


def test_an_error_in_mid_stream_is_reported(client: Client) -> None:
    sql = "SELECT throwIf(number = 1000000) FROM numbers(2000000) SETTINGS max_threads = 1"
    with pytest.raises(StreamFailureError, match="Code: 395"):
        _ = client.query(sql).result_rows


def test_a_reader_that_disconnects_frees_its_slot(up: Any, client: Client) -> None:
    for _ in range(10):  # more than there are lanes
        connection = HTTPConnection("127.0.0.1", up.sql, timeout=20)
        connection.request("GET", "/?query=SELECT+number+FROM+numbers(10000000000)")
        assert connection.getresponse().read(10)
        connection.close()
    assert client.command("SELECT 1") == 1


def test_many_clients_at_once(up: Any) -> None:
    async def ask() -> list[int]:
        client = await clickhouse_connect.get_async_client(host="127.0.0.1", port=up.sql)
        async with client:
            answers = await asyncio.gather(*(client.query(f"SELECT {n}") for n in range(30)))
        return [answer.result_rows[0][0] for answer in answers]

    assert asyncio.run(ask()) == list(range(30))


def test_reading_only_is_kept_to(up: Any) -> None:
    owner = {"X-ClickHouse-Key": up.key}
    answer = ask(up.sql, "GET", "/?query=DROP+TABLE+otel.otel_traces", headers=owner)
    assert (answer.status, answer.headers["X-ClickHouse-Exception-Code"]) == (500, "164")


def test_a_web_page_is_refused(up: Any) -> None:
    headers = {"Origin": "http://evil.example"}
    assert ask(up.sql, "POST", "/", b"SELECT 1", headers).status == 403


def test_ping_answers(up: Any) -> None:
    assert ask(up.sql, "GET", "/ping").body == b"Ok.\n"
