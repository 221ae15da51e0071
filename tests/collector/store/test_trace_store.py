import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.otlp import insert_otlp, open_empty_store
from tests.up import running_up

from ltrain_collector.dsn import Server
from ltrain_collector.errors import (
    NO_CODE,
    NoStore,
    QueryFailed,
    StoreInUse,
    StoreUnreachable,
    StoreUnusable,
)
from ltrain_collector.signals import TRACES
from ltrain_collector.store.trace_store import Store

HOSTILE = "a\\b'c\n\t\"é\0{x} %s ${y} --"


def test_both_kinds_give_the_same_types(store: Store) -> None:
    result = store.query(
        "SELECT toUInt8(1) AS u, 'x'::LowCardinality(String) AS s, map('k', 'v') AS m, "
        "[map('k', 1.5)] AS l, toDateTime64('2026-01-02 03:04:05.678', 9) AS t, "
        "CAST(NULL, 'Nullable(Float64)') AS n, [toDateTime64(0, 3)] AS ts"
    )
    assert result.schema == {
        "u": pl.UInt8(),
        "s": pl.String(),
        "m": pl.Map(pl.String(), pl.String()),
        "l": pl.List(pl.Map(pl.String(), pl.Float64())),
        "t": pl.Datetime("ns", "UTC"),
        "n": pl.Float64(),
        "ts": pl.List(pl.Datetime("ms", "UTC")),
    }
    assert result["t"].item() == datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    assert result.select(pl.col("m").map.get("k")).item() == "v"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("String", HOSTILE),
        ("String", ""),
        ("Array(String)", [HOSTILE, "b", ""]),
        ("Array(String)", [f"{number:032x}" for number in range(5_000)]),
        ("Nullable(String)", None),
        ("Int64", -(2**63)),
        ("Float64", 0.1),
        ("Bool", True),
    ],
)
def test_parameters_are_passed_unchanged(store: Store, kind: str, value: object) -> None:
    assert store.query(f"SELECT {{x:{kind}}} AS x", {"x": value})["x"].to_list() == [value]


def test_a_percent_sign_is_just_that(store: Store) -> None:
    assert store.query("SELECT 'a%sb' LIKE 'a%b' AS x")["x"].item() == 1


def test_parameters_and_settings_do_not_leak_into_the_next_query(store: Store) -> None:
    store.query("SELECT {x:String} AS x SETTINGS max_threads = 1", {"x": "a"})
    with pytest.raises(QueryFailed) as caught:
        store.query("SELECT {x:String} AS x", {"y": "a"})
    assert caught.value.code == 456


def test_a_result_without_rows_has_columns(store: Store) -> None:
    assert store.query("SELECT 1 AS a, 'x' AS b WHERE 0").schema == {"a": pl.UInt8, "b": pl.String}
    assert list(store.stream("SELECT 1 AS a WHERE 0")) == []


def test_a_stream_comes_in_parts(store: Store) -> None:
    sizes = [f.height for f in store.stream("SELECT number FROM numbers(300000)")]
    assert sum(sizes) == 300_000
    assert len(sizes) > 1


def test_a_stream_may_be_left_in_the_middle(store: Store) -> None:
    stream = store.stream("SELECT number FROM numbers(100000000)")
    assert next(stream).height
    stream.close()  # type: ignore[attr-defined]
    assert store.query("SELECT 1 AS a")["a"].item() == 1


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELEC 1", 62),
        ("SELECT nocol FROM otel.spans", 47),
        ("SELECT 1 FROM otel.nope", 60),
        ("SELECT 1 FROM nope.t", 81),
        ("SELECT throwIf(1)", 395),
        ("SELECT throwIf(number = 1000000) FROM numbers(2000000) SETTINGS max_threads = 1", 395),
        ("DROP TABLE otel.otel_traces", 164),
        ("INSERT INTO otel.otel_trace_executions SELECT '', '', '', ''", 164),
    ],
)
def test_errors_have_clickhouses_code(store: Store, sql: str, code: int) -> None:
    with pytest.raises(QueryFailed, match=f"Code: {code}") as caught:
        store.query(sql)
    assert caught.value.code == code
    assert "Stack trace" not in str(caught.value)


def test_an_inserted_frame_is_returned(store: Store) -> None:
    store.command("DROP TABLE IF EXISTS otel.mine")
    store.command(
        "CREATE TABLE otel.mine (id UInt64, s String, m Map(LowCardinality(String), String), "
        "t DateTime64(9), x Array(Float32), d UInt8 DEFAULT 7) ENGINE = MergeTree ORDER BY id"
    )
    frame = pl.DataFrame(
        {
            "id": [1, 2],
            "s": [HOSTILE, ""],
            "m": [{"a": "b"}, {}],
            "t": [datetime(2026, 1, 1, tzinfo=UTC)] * 2,
            "x": [[0.5], []],
        },
        {
            "id": pl.UInt64,
            "s": pl.String,
            "m": pl.Map(pl.String, pl.String),
            "t": pl.Datetime("ns", "UTC"),
            "x": pl.List(pl.Float32),
        },
    )
    assert store.insert("otel.mine", frame) == 2
    back = store.query("SELECT * FROM otel.mine ORDER BY id")
    assert_frame_equal(back.drop("d"), frame)
    assert back["d"].to_list() == [7, 7]


def test_results_are_exported_as_clickhouse_writes_them(store: Store) -> None:
    sql = "SELECT number AS n, map('k', 'v') AS m FROM numbers(2)"
    assert b"".join(store.export(sql, "JSONEachRow")) == (
        b'{"n":0,"m":{"k":"v"}}\n{"n":1,"m":{"k":"v"}}\n'
    )


def test_migrating_twice_is_migrating_once(folder: Store) -> None:
    folder.migrate()
    assert folder.query("SELECT * FROM otel.spans").is_empty()


def test_a_span_sent_again_is_read_once(store: Store, request_of: Callable[..., bytes]) -> None:
    for _ in range(3):
        insert_otlp(store, request_of((0xA1, 1), (0xA1, 2), ltrain__rollout__id="twice"))
    where = "WHERE RolloutId = 'twice'"
    assert store.query(f"SELECT count() AS n FROM otel.spans {where}")["n"].item() == 2
    traces = store.query(f"SELECT TraceId FROM otel.trace_executions {where}")
    assert traces["TraceId"].to_list() == [f"{0xA1:032x}"]


def test_of_two_duplicates_the_complete_one_stays_else_the_first(
    folder: Store, request_of: Callable[..., bytes]
) -> None:
    read = "SELECT SpanAttributes['v'] AS v FROM otel.spans"
    insert_otlp(folder, request_of((1, 1), v="cut", ltrain__truncated="true"))
    assert folder.query(read)["v"].to_list() == ["cut"]
    insert_otlp(folder, request_of((1, 1), v="whole"))
    assert folder.query(read)["v"].to_list() == ["whole"]
    insert_otlp(folder, request_of((1, 1), v="cut", ltrain__truncated="true"))
    folder.command("OPTIMIZE TABLE otel.otel_traces FINAL")
    assert folder.query(read)["v"].to_list() == ["whole"]


EXPORTER = f"""
CREATE TABLE {{name}} (
    Timestamp DateTime64(9), TraceId String, SpanId String, ParentSpanId String,
    TraceState String, SpanName LowCardinality(String), SpanKind LowCardinality(String),
    ServiceName LowCardinality(String), ResourceAttributes Map(LowCardinality(String), String),
    ScopeName String, ScopeVersion String, SpanAttributes Map(LowCardinality(String), String),
    Duration UInt64, StatusCode LowCardinality(String), StatusMessage String,
    Events Nested (Timestamp DateTime64(9), Name LowCardinality(String),
        Attributes Map(LowCardinality(String), String)),
    Links Nested (TraceId String, SpanId String, TraceState String,
        Attributes Map(LowCardinality(String), String))
) ENGINE = MergeTree PARTITION BY toDate(Timestamp)
ORDER BY (ServiceName, SpanName, toDateTime(Timestamp))
-- {len(TRACES.tables[0].columns)} columns
"""


@pytest.mark.parametrize("name", ["otel.otel_traces", "theirs.otel_traces"])
def test_a_table_that_the_exporter_made_reads_the_same(
    tmp_path: Path, request_of: Callable[..., bytes], name: str
) -> None:
    with open_empty_store(tmp_path / "ours") as ours:
        insert_otlp(ours, request_of((1, 1), (1, 2), ltrain__rollout__id="r", ltrain__wave="3"))
        expected = ours.query("SELECT * EXCEPT (IngestedAt) FROM otel.spans ORDER BY SpanId")
        copied = ours.query("SELECT * FROM otel.otel_traces")
    with Store.open(f"chdb://{tmp_path}/theirs") as theirs:
        theirs.command(f"CREATE DATABASE {name.partition('.')[0]}")
        theirs.command(EXPORTER.format(name=name))
        theirs.migrate(None if name == TRACES.tables[0].name else name)
        for _ in range(2):
            theirs.insert(name, copied)
        result = theirs.query("SELECT * EXCEPT (IngestedAt) FROM otel.spans ORDER BY SpanId")
        assert_frame_equal(result, expected)
        assert theirs.query("SELECT RolloutId FROM otel.trace_executions").height == 1
        assert theirs.query("SELECT * FROM otel.rollouts").is_empty()


def test_a_folder_that_another_process_has_is_reported(tmp_path: Path) -> None:
    holder = (
        "import sys; from ltrain_collector.store.trace_store import Store\n"
        f"store = Store.open('chdb://{tmp_path}/store'); print('open', flush=True)\n"
        "sys.stdin.read(); store.close()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stdout.readline() == b"open\n"
        with pytest.raises(StoreInUse, match=rf"process {process.pid};.*LTRAIN_STORE=http"):
            Store.open(f"chdb://{tmp_path}/store")
        process.communicate(b"")
    Store.open(f"chdb://{tmp_path}/store").close()


def test_a_process_has_one_folder_at_a_time(folder: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreInUse, match="close that one first"):
        Store.open(f"chdb://{tmp_path}/other")
    with Store.open(f"chdb://{tmp_path}/store") as again:
        again.query("SELECT count() FROM otel.spans")
    assert folder.query("SELECT 1 AS a").height == 1


def test_a_folder_that_cannot_be_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnusable, match=r"cannot be used.*--dir"):
        Store.open(f"chdb://{tmp_path}/file")
    with pytest.raises(StoreUnusable, match="Not a directory"):
        Store.open(f"chdb://{tmp_path}/file/store")
    with pytest.raises(StoreUnusable):
        Store.open("chdb:///proc/store")


def test_an_unreachable_server_is_reported() -> None:
    with pytest.raises(
        StoreUnreachable, match=r"127\.0\.0\.1:9 .*: Connection refused\. .*LTRAIN_STORE"
    ):
        Store.open("http://127.0.0.1:9")


def test_a_server_that_is_gone_is_reported_without_the_query(tmp_path: Path) -> None:
    with running_up(tmp_path / "store") as up:
        store = Store.open(up.dsn)
        up.stop()
        with closing(store), pytest.raises(QueryFailed) as caught:
            store.query("SELECT {rollout:String} AS id", {"rollout": "many ids"})
    assert str(caught.value) == "The store does not answer: Connection refused."
    assert caught.value.code == NO_CODE


def test_without_an_address_it_is_the_store_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LTRAIN_STORE", raising=False)
    monkeypatch.setattr("ltrain_collector.store.trace_store.LOCAL_SERVER", Server("127.0.0.1", 9))
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path))
    with pytest.raises(NoStore, match="ltrain up"):
        Store.open()
    (tmp_path / "store").mkdir()
    with Store.open() as store:
        assert store.name == f"chdb://{tmp_path}/store"
    monkeypatch.setenv("LTRAIN_STORE", f"chdb://{tmp_path}/nowhere")
    with pytest.raises(NoStore, match="There is no store in"):
        Store.open(create=False)
