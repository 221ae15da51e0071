import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.collector.conftest import RequestOf
from tests.otlp import insert_otlp

from ltrain_collector import schema
from ltrain_collector.store import rollout_stream
from ltrain_collector.store.trace_store import Store

MARCH = 1_772_539_200_000_000_000
APRIL = MARCH + 31 * 86_400_000_000_000
SECOND = 1_000_000_000


def test_rollouts_come_whole_and_each_span_once(store: Store, request_of: RequestOf) -> None:
    store.command("SYSTEM STOP MERGES otel.otel_traces")

    def put(rollout: str, span: int, start: int, **more: str) -> None:
        named = {"ltrain__rollout__id": rollout} if rollout else {}
        trace = ord(rollout or "z")
        body = request_of((trace, span), start=start, ltrain__run__id="whole", **named, **more)
        insert_otlp(store, body)

    put("c", 31, APRIL)
    put("b", 22, APRIL)
    put("a", 12, MARCH + SECOND, ltrain__truncated="true")
    put("d", 41, MARCH)
    put("", 2, APRIL)
    put("b", 21, MARCH)
    put("a", 11, MARCH)
    put("", 1, MARCH)
    put("a", 12, MARCH + SECOND)
    put("b", 22, APRIL, ltrain__truncated="true")
    put("b", 21, MARCH)
    put("c", 31, APRIL)

    where, params = "RunId = {run:String}", {"run": "whole"}
    columns = "RolloutId, SpanId, SpanAttributes['ltrain.truncated'] AS cut"
    result = [
        row
        for each in rollout_stream.stream_rollouts(store, columns, where, params)
        for row in each.rows()
    ]

    assert [(rollout, int(span, 16), cut) for rollout, span, cut in result] == [
        ("", 1, ""),
        ("a", 11, ""),
        ("a", 12, ""),
        ("d", 41, ""),
        ("", 2, ""),
        ("c", 31, ""),
        ("b", 21, ""),
        ("b", 22, ""),
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "across", [0, 3, rollout_stream.MAX_WIDE_ROLLOUTS, rollout_stream.MAX_WIDE_ROLLOUTS + 1]
)
def test_any_number_of_rollouts_can_reach_into_a_second_month(store: Store, across: int) -> None:
    """Few of them are read last; with too many, all months are merged."""
    run = f"across {across}"
    store.command(f"""
        INSERT INTO otel.otel_traces (Timestamp, TraceId, SpanId, SpanAttributes)
        WITH intDiv(number, 4) AS r, lower(hex(MD5(toString(r)))) AS id
        SELECT toDateTime64('2026-01-31 23:59:58', 9, 'UTC') - toIntervalMonth(r % 3)
                + toIntervalSecond(if(r < {across}, number % 4, number % 2)),
            id, lower(hex(number)), map('ltrain.run.id', '{run}', 'ltrain.rollout.id', id)
        FROM numbers({4 * (across + 50)})""")

    where, params = "RunId = {run:String}", {"run": run}
    sql = f"SELECT * FROM otel.spans WHERE {where} {schema.ROLLOUT_ORDER}"
    merged = store.query(sql, params)
    frames = list(rollout_stream.stream_rollouts(store, "*", where, params))

    key = ["RolloutId", "TraceId", "Timestamp", "SpanId"]
    ids = [rollout for frame in frames for rollout in frame["RolloutId"]]
    assert len(ids) == 4 * (across + 50)
    assert sum(here != before for here, before in zip(ids[1:], ids, strict=False)) == across + 49
    assert_frame_equal(pl.concat(frames).sort(key), merged.sort(key))


def test_a_store_without_spans_gives_nothing(folder: Store) -> None:
    assert list(rollout_stream.stream_rollouts(folder)) == []


READ = """
import json, sys, threading
from pathlib import Path
from ltrain_collector.store import rollout_stream
from ltrain_collector.store.trace_store import Store

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

with Store.open(sys.argv[1]) as store:
    for _ in store.stream("SELECT * FROM otel.spans LIMIT 1"):
        pass
    base = peak = resident()
    rows = text = 0
    for frame in rollout_stream.stream_rollouts(store):
        rows, text = rows + frame.height, text + frame.estimated_size()
        peak = max(peak, resident())
print(json.dumps({"rows": rows, "text": text, "over": peak - base}))
"""


@pytest.mark.nightly
def test_memory_is_bounded(tmp_path: Path) -> None:
    dsn = f"chdb://{tmp_path}/store"
    with Store.open(dsn) as store:
        store.migrate()
        for few in range(4):
            store.command(f"""
                INSERT INTO otel.otel_traces (Timestamp, TraceId, SpanId, SpanAttributes)
                WITH {few} * 15000 + number AS n, lower(hex(MD5(toString(intDiv(n, 20))))) AS id
                SELECT toDateTime64('2026-01-01 00:00:00', 9, 'UTC')
                        + toIntervalMonth(intDiv(n, 20) % 6) + toIntervalSecond(n % 20),
                    id, lower(hex(n)), map('ltrain.run.id', 'r', 'ltrain.rollout.id', id,
                        'text', repeat(hex(cityHash64(n)), 300))
                FROM numbers(15000)""")
    argv = [sys.executable, "-c", READ, dsn]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout)
    assert result["rows"] == 60_000
    assert result["text"] > 290_000_000
    assert result["over"] < 200_000_000, result
