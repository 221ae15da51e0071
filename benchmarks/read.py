"""A million wide spans of 24 months in rollout order: rows a CPU-second, peak memory."""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl

from ltrain_collector import rollouts, schema
from ltrain_collector.store import Store

SPANS = 1_000_000
MONTHS = 24
PER_ROLLOUT = 20
STEP = 20_000
"""Spans that are made at a time."""

MADE = """
INSERT INTO otel.otel_traces (Timestamp, TraceId, SpanId, SpanName, SpanKind, ServiceName,
    ResourceAttributes, ScopeName, SpanAttributes, Duration, StatusCode)
WITH
    {first} + number AS n, intDiv(n, {per_rollout}) AS r, n % {per_rollout} AS j,
    lower(hex(MD5(toString(r)))) AS rollout,
    (SELECT arrayStringConcat(arrayMap(i -> concat(
        lower(substring(hex(MD5(toString(cityHash64(i) % 6000))), 1, 3 + cityHash64(i) % 7)), ' '),
        range(200000)))) AS words,
    part -> substring(words, 1 + cityHash64(n, part) % 900000,
        2000 + cityHash64(part, n) % 500) AS text
SELECT
    toDateTime64('2024-01-01 00:00:00', 9, 'UTC') + toIntervalMonth(intDiv(n, {per_month}))
        + toIntervalSecond(r % 2000000) + toIntervalMillisecond(j * 500),
    rollout, lower(hex(cityHash64(n))), 'chat', 'Client', 'agent',
    map('service.name', 'agent', 'service.instance.id', lower(hex(cityHash64(r)))), 'bench',
    map('ltrain.run.id', 'bench', 'ltrain.rollout.id', rollout, 'ltrain.attempt.id', '1',
        'ltrain.task.id', toString(r % 1000), 'ltrain.mode', 'train', 'ltrain.wave', '3',
        'gen_ai.operation.name', 'chat', 'gen_ai.request.model', 'm',
        'gen_ai.usage.input_tokens', '1000', 'gen_ai.usage.output_tokens', '100',
        'gen_ai.input.messages', text(1), 'gen_ai.output.messages', text(2)),
    1000000, 'Ok'
FROM numbers({count}) SETTINGS max_partitions_per_insert_block = 0
"""

LEAST = 80_000
"""Rows a CPU-second of wide spans in rollout order."""
LEAST_NARROW = 2_000_000
AT_MOST = 300
"""MB that a stream may add to the memory of a process that has the store open."""

NARROW = "RunId, RolloutId, TraceId, SpanId, Timestamp, Duration, InTokens, OutTokens"
EXPORTERS = ", ".join(f"`{name}`" for name in schema.COLUMNS)

READS: dict[str, Callable[[Store], Iterator[pl.DataFrame]]] = {
    "wide": rollouts.stream_rollouts,
    "wide, the exporter's columns": lambda store: rollouts.stream_rollouts(store, EXPORTERS),
    "wide, one merge": lambda store: store.stream(
        f"SELECT * FROM otel.spans {schema.ROLLOUT_ORDER}"
    ),
    "wide, no order": lambda store: store.stream("SELECT * FROM otel.spans"),
    "narrow": lambda store: store.stream(f"SELECT {NARROW} FROM otel.spans"),
    "narrow, in order": lambda store: rollouts.stream_rollouts(store, NARROW),
}


def fill(store: Store, spans: int) -> None:
    """Make `spans` spans, and merge each month's parts, as ClickHouse does with old ones."""
    per_month = -(-spans // MONTHS)
    per_month += -per_month % PER_ROLLOUT
    for first in range(0, spans, STEP):
        count = min(STEP, spans - first)
        how = {"first": first, "count": count, "per_month": per_month, "per_rollout": PER_ROLLOUT}
        store.command(MADE.format(**how))
    store.command("OPTIMIZE TABLE otel.otel_traces FINAL")


def resident() -> float:
    """Give the MB of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def read(directory: str, name: str) -> dict[str, float]:
    """Read to the end; run in a process of its own, whose peak is this reading's."""
    with Store.open(f"chdb://{directory}") as store:
        for _ in store.stream("SELECT * FROM otel.spans LIMIT 1"):
            pass
        base = peak = resident()
        ended = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not ended.wait(0.01):
                peak = max(peak, resident())

        watcher = threading.Thread(target=watch)
        watcher.start()
        began, cpu, rows = time.monotonic(), time.process_time(), 0
        for frame in READS[name](store):
            rows += frame.height
        cpu, took = time.process_time() - cpu, time.monotonic() - began
        ended.set()
        watcher.join()
    return {
        "rows": rows,
        "cpu_s": round(cpu, 2),
        "s": round(took, 2),
        "rows_per_cpu_s": round(rows / cpu),
        "peak_mb_over_base": round(peak - base),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=SPANS)
    parser.add_argument("--of", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.of:
        print(json.dumps(read(*given.of)))
        return
    taken = {}
    with tempfile.TemporaryDirectory() as directory:
        with Store.open(f"chdb://{directory}") as store:
            store.migrate()
            fill(store, given.spans)
        for name in READS:
            argv = [sys.executable, __file__, "--of", directory, name]
            done = subprocess.run(argv, check=True, stdout=subprocess.PIPE)
            taken[name] = json.loads(done.stdout)
            print(json.dumps({"name": name, **taken[name]}), flush=True)
    wide, narrow = taken["wide"], taken["narrow"]
    fast, slim = wide["rows_per_cpu_s"], wide["peak_mb_over_base"]
    print(
        json.dumps(
            {
                "name": "read",
                "value": fast,
                "unit": f"wide rows a CPU-second in rollout order, at least {LEAST}, "
                f"within {AT_MOST} MB",
                "peer": None,
                "ratio": None,
                "peak_mb_over_base": slim,
                "narrow_rows_per_cpu_s": narrow["rows_per_cpu_s"],
            }
        )
    )
    sys.exit(fast < LEAST or slim > AT_MOST or narrow["rows_per_cpu_s"] < LEAST_NARROW)


if __name__ == "__main__":
    main()
