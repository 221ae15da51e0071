"""Bytes on disk of chats with growing histories: the table of ltrain and of the exporter."""

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
MAX_RATIO = 0.2
"""Limit, as a share of the exporter's bytes."""

# the table that the Collector's ClickHouse exporter creates, without TTL, since the spans are old
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


def random_words(chance: random.Random) -> list[str]:
    """Return words for prompts, with a few common and many rare words."""
    vocabulary = [
        "".join(
            chance.choice("bcdfghjklmnprst") + chance.choice("aeiou")
            for _ in range(chance.randint(1, 4))
        )
        for _ in range(6000)
    ]
    weights = [1 / (rank + 3) for rank in range(len(vocabulary))]
    return chance.choices(vocabulary, weights, k=400_000)


def make_chats(rollouts: int) -> pl.DataFrame:
    """Make chats that run in parallel; the input of a call is the whole history before it."""
    chance = random.Random(3)
    pool = random_words(chance)

    def text(size: int) -> str:
        at = chance.randrange(len(pool) - 2000)
        return " ".join(pool[at : at + size // 5])[:size]

    rows = []
    for rollout in range(rollouts):
        name = f"{chance.getrandbits(128):032x}"
        history = [{"role": "system", "content": text(1200)}]
        for turn in range(TURNS):
            history.append({"role": "user", "content": text(chance.randint(300, 2500))})
            prompt = json.dumps(history)
            history.append({"role": "assistant", "content": text(chance.randint(200, 1500))})
            attributes = {
                "ltrain.run.id": "bench",
                "ltrain.rollout.id": name,
                "ltrain.attempt.id": "1",
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "m",
                "gen_ai.input.messages": prompt,
                "gen_ai.output.messages": json.dumps(history[-1:]),
            }
            at = 1_790_000_000_000_000_000 + turn * 10**10 + rollout * 10**6
            rows.append((at, name, f"{chance.getrandbits(64):016x}", attributes))
    chance.shuffle(rows)
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
    arguments = parser.parse_args()
    spans = make_chats(arguments.rollouts)
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
            start = time.process_time()
            for rows in spans.iter_slices(500):
                store.insert(table, rows)
            store.command(f"OPTIMIZE TABLE {table} FINAL")
            cpu[database] = round(time.process_time() - start, 2)
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
                f"at most {MAX_RATIO:g} of the exporter's own table",
                "peer": round(size["theirs"] / 1e6, 2),
                "ratio": round(ratio, 3),
                "cpu_s": cpu["otel"],
                "peer_cpu_s": cpu["theirs"],
            }
        )
    )
    sys.exit(ratio > MAX_RATIO)


if __name__ == "__main__":
    main()
