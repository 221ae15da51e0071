"""Read a million wide spans of 24 months in rollout order: rows per CPU second, peak memory."""

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

from ltrain_collector import schema
from ltrain_collector.store import Store, rollout_stream

SPANS = 1_000_000
MONTHS = 24
PER_ROLLOUT = 20
STEP = 20_000
"""Spans per INSERT."""

INSERT = """
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

MIN_WIDE = 80_000
"""Minimum rows per CPU second, for wide spans in rollout order."""
MIN_NARROW = 2_000_000
"""Minimum rows per CPU second, for narrow spans."""
MAX_MEMORY = 300
"""Maximum MB that a stream adds to the memory of a process with an open store."""

NARROW = "RunId, RolloutId, TraceId, SpanId, Timestamp, Duration, InTokens, OutTokens"
EXPORTERS = ", ".join(f"`{name}`" for name in schema.COLUMNS)

READS: dict[str, Callable[[Store], Iterator[pl.DataFrame]]] = {
    "wide": rollout_stream.stream_rollouts,
    "wide, the exporter's columns": lambda store: rollout_stream.stream_rollouts(store, EXPORTERS),
    "wide, one merge": lambda store: store.stream(
        f"SELECT * FROM otel.spans {schema.ROLLOUT_ORDER}"
    ),
    "wide, no order": lambda store: store.stream("SELECT * FROM otel.spans"),
    "narrow": lambda store: store.stream(f"SELECT {NARROW} FROM otel.spans"),
    "narrow, in order": lambda store: rollout_stream.stream_rollouts(store, NARROW),
}


def fill(store: Store, spans: int) -> None:
    """Insert `spans` spans and merge the parts of each month, as ClickHouse does with old parts."""
    per_month = -(-spans // MONTHS)
    per_month += -per_month % PER_ROLLOUT
    for first in range(0, spans, STEP):
        count = min(STEP, spans - first)
        parameters = {
            "first": first,
            "count": count,
            "per_month": per_month,
            "per_rollout": PER_ROLLOUT,
        }
        store.command(INSERT.format(**parameters))
    store.command("OPTIMIZE TABLE otel.otel_traces FINAL")


def resident() -> float:
    """Return the resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def read(directory: str, name: str) -> dict[str, float]:
    """Read everything and return the cost; it runs in its own process to measure the peak."""
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
        start, cpu, rows = time.monotonic(), time.process_time(), 0
        for frame in READS[name](store):
            rows += frame.height
        cpu, seconds = time.process_time() - cpu, time.monotonic() - start
        ended.set()
        watcher.join()
    return {
        "rows": rows,
        "cpu_s": round(cpu, 2),
        "s": round(seconds, 2),
        "rows_per_cpu_s": round(rows / cpu),
        "peak_mb_over_base": round(peak - base),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=SPANS)
    parser.add_argument("--of", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.of:
        print(json.dumps(read(*arguments.of)))
        return
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        with Store.open(f"chdb://{directory}") as store:
            store.migrate()
            fill(store, arguments.spans)
        for name in READS:
            argv = [sys.executable, __file__, "--of", directory, name]
            done = subprocess.run(argv, check=True, stdout=subprocess.PIPE)
            results[name] = json.loads(done.stdout)
            print(json.dumps({"name": name, **results[name]}), flush=True)
    wide, narrow = results["wide"], results["narrow"]
    rate, memory = wide["rows_per_cpu_s"], wide["peak_mb_over_base"]
    print(
        json.dumps(
            {
                "name": "read",
                "value": rate,
                "unit": f"wide rows a CPU-second in rollout order, at least {MIN_WIDE}, "
                f"within {MAX_MEMORY} MB",
                "peer": None,
                "ratio": None,
                "peak_mb_over_base": memory,
                "narrow_rows_per_cpu_s": narrow["rows_per_cpu_s"],
            }
        )
    )
    sys.exit(rate < MIN_WIDE or memory > MAX_MEMORY or narrow["rows_per_cpu_s"] < MIN_NARROW)


if __name__ == "__main__":
    main()
