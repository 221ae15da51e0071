"""Bytes on disk of chats whose history grows with each call: our table and the exporter's own."""

import argparse
import json
import random
import sys
import tempfile
import time

import polars as pl

from ltrain_collector import schema
from ltrain_collector.store import Store

ROLLOUTS = 250
TURNS = 20
AT_MOST = 0.2
"""Of the exporter's bytes."""

# the Collector's ClickHouse exporter, as it creates its table by itself; no TTL, the spans are old
EXPORTER = """
CREATE TABLE theirs.otel_traces (
    Timestamp DateTime64(9) CODEC(Delta, ZSTD(1)),
    TraceId String CODEC(ZSTD(1)), SpanId String CODEC(ZSTD(1)),
    ParentSpanId String CODEC(ZSTD(1)), TraceState String CODEC(ZSTD(1)),
    SpanName LowCardinality(String) CODEC(ZSTD(1)), SpanKind LowCardinality(String) CODEC(ZSTD(1)),
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeName String CODEC(ZSTD(1)), ScopeVersion String CODEC(ZSTD(1)),
    SpanAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    Duration UInt64 CODEC(ZSTD(1)), StatusCode LowCardinality(String) CODEC(ZSTD(1)),
    StatusMessage String CODEC(ZSTD(1)),
    Events Nested (Timestamp DateTime64(9), Name LowCardinality(String),
        Attributes Map(LowCardinality(String), String)) CODEC(ZSTD(1)),
    Links Nested (TraceId String, SpanId String, TraceState String,
        Attributes Map(LowCardinality(String), String)) CODEC(ZSTD(1)),
    INDEX idx_trace_id TraceId TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX idx_res_attr_key mapKeys(ResourceAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_res_attr_value mapValues(ResourceAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_span_attr_key mapKeys(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_span_attr_value mapValues(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_duration Duration TYPE minmax GRANULARITY 1
) ENGINE = MergeTree
PARTITION BY toDate(Timestamp)
ORDER BY (ServiceName, SpanName, toDateTime(Timestamp))
SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1
"""
BYTES = (
    "SELECT sum(bytes_on_disk) AS n FROM system.parts "
    "WHERE active AND database = {database:String} AND table = 'otel_traces'"
)


def words(made: random.Random) -> list[str]:
    """Give text to cut prompts from, by a law of few common and many rare words."""
    known = [
        "".join(
            made.choice("bcdfghjklmnprst") + made.choice("aeiou") for _ in range(made.randint(1, 4))
        )
        for _ in range(6000)
    ]
    return made.choices(known, [1 / (rank + 3) for rank in range(len(known))], k=400_000)


def chats(rollouts: int) -> pl.DataFrame:
    """Make chats: each call's input is all that was said before it; calls of many run at once."""
    made = random.Random(3)
    pool = words(made)

    def text(size: int) -> str:
        at = made.randrange(len(pool) - 2000)
        return " ".join(pool[at : at + size // 5])[:size]

    rows = []
    for rollout in range(rollouts):
        name = f"{made.getrandbits(128):032x}"
        said = [{"role": "system", "content": text(1200)}]
        for turn in range(TURNS):
            said.append({"role": "user", "content": text(made.randint(300, 2500))})
            asked = json.dumps(said)
            said.append({"role": "assistant", "content": text(made.randint(200, 1500))})
            attributes = {
                "ltrain.run.id": "bench",
                "ltrain.rollout.id": name,
                "ltrain.attempt.id": "1",
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "m",
                "gen_ai.input.messages": asked,
                "gen_ai.output.messages": json.dumps(said[-1:]),
            }
            at = 1_790_000_000_000_000_000 + turn * 10**10 + rollout * 10**6
            rows.append((at, name, f"{made.getrandbits(64):016x}", attributes))
    made.shuffle(rows)
    columns = ["Timestamp", "TraceId", "SpanId", "SpanAttributes"]
    frame = pl.DataFrame(
        [list(column) for column in zip(*rows, strict=True)],
        schema={
            "Timestamp": pl.Int64(),
            "TraceId": pl.String(),
            "SpanId": pl.String(),
            "SpanAttributes": pl.Map(pl.String(), pl.String()),
        },
    )
    return frame.select(columns).with_columns(
        pl.col("Timestamp").cast(pl.Datetime("ns", "UTC")),
        SpanName=pl.lit("chat"),
        ServiceName=pl.lit("agent"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS)
    given = parser.parse_args()
    spans = chats(given.rollouts)
    size, cpu = dict[str, int](), dict[str, float]()
    with (
        tempfile.TemporaryDirectory() as directory,
        Store.open(f"chdb://{directory}") as store,
    ):
        store.migrate()
        store.command("CREATE DATABASE theirs")
        store.command(EXPORTER)
        for database in ("otel", "theirs"):
            table = f"{database}.otel_traces"
            began = time.process_time()
            for some in spans.iter_slices(500):
                store.insert(table, some)
            store.command(f"OPTIMIZE TABLE {table} FINAL")
            cpu[database] = round(time.process_time() - began, 2)
            size[database] = int(store.query(BYTES, {"database": database})["n"].item())
        raw = store.query("SELECT sum(byteSize(SpanAttributes)) AS n FROM theirs.otel_traces")["n"]
        same = f"SELECT count(), sum(cityHash64(SpanAttributes)) FROM {schema.TRACES} FINAL"
        other = same.replace(f"{schema.TRACES} FINAL", "theirs.otel_traces")
        if store.query(same).rows() != store.query(other).rows():
            raise SystemExit("The two tables do not hold the same spans.")
    ratio = size["otel"] / size["theirs"]
    print(
        json.dumps(
            {
                "name": "disk",
                "value": round(size["otel"] / 1e6, 2),
                "unit": f"MB of {spans.height} spans ({raw.item() / 1e6:.0f} MB), "
                f"at most {AT_MOST:g} of the exporter's own table",
                "peer": round(size["theirs"] / 1e6, 2),
                "ratio": round(ratio, 3),
                "cpu_s": cpu["otel"],
                "peer_cpu_s": cpu["theirs"],
            }
        )
    )
    sys.exit(ratio > AT_MOST)


if __name__ == "__main__":
    main()
