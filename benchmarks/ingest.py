"""OTLP over HTTP to durable rows: spans per CPU second of `ltrain up`, seconds per answer.

The large requests are also sent with a key that is bound to their run, whose records are checked.
"""

import json
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.support.process_cost import cpu_seconds, idle_cpu_seconds
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ltrain_collector.access import sign_bound, store_secret
from ltrain_collector.signals import encode_traces
from ltrain_collector.store import Store
from ltrain_instrument.identity import Identity

AGENTS = Path(__file__).parent / "agents"
LTRAIN = Path(sys.executable).with_name("ltrain")
RUNS = 3
MAX_BOUND = 1.15
"""The bar of the CPU seconds with a run's bound key, as a multiple of those without a key."""


@dataclass(frozen=True)
class Load:
    """A load of spans."""

    name: str
    requests: int
    spans: int
    """Spans of a request."""
    clients: int
    minimum: int
    """The minimum of spans per CPU second."""

    def pause(self) -> float:
        """Return the seconds between requests of a client at half the minimum rate."""
        return self.clients * self.spans / (self.minimum / 2)


LOADS = (
    Load("large", requests=120, spans=512, clients=16, minimum=10_000),
    Load("small", requests=3000, spans=8, clients=64, minimum=4_000),
)


@contextmanager
def collector(folder: Path) -> Iterator[tuple[int, str, str]]:
    """Start `ltrain up` on one core; yield its process id and its addresses of OTLP and SQL."""
    ports = ("--otlp-port", "0", "--http-port", "0")
    process = subprocess.Popen(
        [*("taskset", "-c", "0"), str(LTRAIN), "up", "--dir", str(folder), *ports],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    ready = process.stdout.readline()
    otlp = re.search(r"OTLP on (http://[\d.:]+)", ready)
    sql = re.search(r"SQL on (http://[\d.:]+)", ready)
    if otlp is None or sql is None:
        raise SystemExit(f"Unexpected output of ltrain up: {ready}")
    try:
        yield process.pid, otlp[1], sql[1]
    finally:
        process.terminate()
        process.wait()


def run(load: Load, place: Path, pause: float, bound: bool = False) -> tuple[float, float, float]:
    """Send a load; return CPU seconds of the server and of its HTTP, and the median latency.

    The store stays until all runs have ended: in the first minutes after the removal of thousands
    of files, ext4 takes several times as long to create one.

    Args:
        bound: whether the requests have a key that is bound to their run.
    """
    file = place / f"{load.name}.bin"
    store = Path(tempfile.mkdtemp(dir=place)) / "store"
    with collector(store) as (pid, otlp, sql):
        key = [sign_bound(store_secret(store), Identity(run="bench"), 3600)] if bound else []
        process, loop = f"/proc/{pid}", f"/proc/{pid}/task/{pid}"
        before, before_loop = idle_cpu_seconds(process), cpu_seconds(loop)
        client = (sys.executable, AGENTS / "exporting.py", otlp, file, load.clients, pause, *key)
        command = ["taskset", "-c", "1", *map(str, client)]
        latencies = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        seconds = idle_cpu_seconds(process) - before
        in_loop = cpu_seconds(loop) - before_loop
        with Store.open(sql) as opened:
            [rows] = opened.query("SELECT count() AS rows FROM otel.spans")["rows"].to_list()
    if rows != load.requests * load.spans:
        raise SystemExit(f"{load.requests * load.spans} spans were sent and {rows} are stored")
    return seconds, in_loop, median(latencies)


def encoding_seconds(file: Path) -> float:
    """Return the CPU seconds that Python needs to make rows of all requests."""
    body, spent = file.read_bytes(), 0.0
    at = 0
    while at < len(body):
        (length,) = struct.unpack_from("<I", body, at)
        start = time.process_time()
        encode_traces(ExportTraceServiceRequest.FromString(body[at + 4 : at + 4 + length]))
        spent += time.process_time() - start
        at += 4 + length
    return spent


def main() -> None:
    rates = {}
    with tempfile.TemporaryDirectory(prefix="ltrain-ingest-") as name:
        place = Path(name)
        for load in LOADS:
            file, size = place / f"{load.name}.bin", (str(load.requests), str(load.spans))
            talking = [sys.executable, str(AGENTS / "talking.py"), str(file), *size]
            subprocess.run(talking, check=True)
            runs = [run(load, place, 0) for _ in range(RUNS)]
            if load is LOADS[0]:
                bound = median(run(load, place, 0, bound=True)[0] for _ in range(RUNS))
                times = bound / median(each[0] for each in runs)
            seconds, in_loop, _ = (median(each) for each in zip(*runs, strict=True))
            _, _, latency = run(load, place, load.pause())
            spans = load.requests * load.spans
            rates[load.name] = round(spans / seconds)
            result = {
                "load": load.name,
                "spans_a_cpu_second": rates[load.name],
                "runs": [round(spans / each[0]) for each in runs],
                "http_share": round(in_loop / seconds, 3),
                "rows_share": round(encoding_seconds(file) / seconds, 3),
                "p50_s": round(latency, 3),
                "p50_at_spans_a_second": load.minimum // 2,
            }
            print(json.dumps(result), flush=True)
    print(
        json.dumps(
            {
                "name": "ingest-bound",
                "value": round(times, 3),
                "unit": f"times the CPU of requests without a key (bar {MAX_BOUND})",
                "peer": None,
                "ratio": None,
            }
        )
    )
    bars = ", ".join(f"{load.name} at least {load.minimum}" for load in LOADS)
    print(
        json.dumps(
            {
                "name": "ingest",
                "value": rates["large"],
                "unit": f"spans a CPU-second, 512 a request ({bars})",
                "peer": None,
                "ratio": None,
            }
        )
    )


if __name__ == "__main__":
    main()
