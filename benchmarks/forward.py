"""`ltrain up --forward`: CPU of a request with a target; records lost in kills and an outage."""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Self
from urllib.request import urlopen

from benchmarks.ingest import AGENTS, LTRAIN, Load
from benchmarks.soak import RECORDS, Soak, count_records, write
from benchmarks.support.process_cost import idle_cpu_seconds

from ltrain_collector.access import sign_owner, store_secret
from ltrain_collector.store import Store

RUNS = 5
LOAD = Load("small", requests=3000, spans=8, clients=16, minimum=4_000)
OUTAGE = 60.0
"""Seconds for which the target is away."""
KILLS = 3
"""Number of `kill -9` of the collector in that time."""
SIGNALS = ("traces", "logs", "metrics")


class Collector:
    """A process of `ltrain up` that starts again on its ports."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.folder, self._more = folder, more
        self.otlp = self.sql = 0
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        ports = ["--otlp-port", str(self.otlp), "--grpc-port", "0", "--http-port", str(self.sql)]
        command = [str(LTRAIN), "up", "--dir", str(self.folder / "store"), *ports, *self._more]
        environ = {"LTRAIN_HOME": str(self.folder)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        self.otlp, _, self.sql = map(int, re.findall(r"[\d.]+\.\d+:(\d+)", ready))

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.otlp}"

    @property
    def dsn(self) -> str:
        key = sign_owner(store_secret(self.folder / "store"), 3600)
        return f"http://owner:{key}@127.0.0.1:{self.sql}"

    def wait_for_target(self) -> None:
        """Wait until nothing waits for the target."""
        while True:
            with urlopen(f"{self.url}/health") as answer:
                state = json.load(answer)["forward"]["copy"]
            if state["missing"]:
                raise SystemExit(f"The target misses requests: {state['missing']}")
            if not (state["waiting_bytes"] or state["away"]):
                return
            time.sleep(0.2)


def cpu_ms(place: Path, file: Path, forwards: bool) -> float:
    """Return the CPU milliseconds of the collector for one request."""
    own, other = (Path(tempfile.mkdtemp(dir=place)) for _ in range(2))
    with Collector(other) as target:
        more = ("--forward", f"copy={target.url}") if forwards else ()
        with Collector(own, *more) as up:
            process = f"/proc/{up.process.pid}"
            before = idle_cpu_seconds(process)
            client = (sys.executable, AGENTS / "exporting.py", up.url, file, LOAD.clients, 0)
            subprocess.run([*map(str, client)], check=True, stdout=subprocess.DEVNULL)
            if forwards:
                up.wait_for_target()
            seconds = idle_cpu_seconds(process) - before
    return seconds / LOAD.requests * 1000


def outage(place: Path, seconds: float) -> dict[str, int]:
    """Write while the target is away and the collector is killed; return the lost records."""
    with (
        Collector(place / "target") as target,
        Collector(place / "own", "--forward", f"copy={target.url}") as up,
    ):
        soak = Soak(up.otlp, "", up.process.pid)
        threads = [soak.make_thread(write(soak, each, at)) for at, each in enumerate(SIGNALS)]
        for thread in threads:
            thread.start()
        try:
            _interrupt(target, up, seconds)
        finally:
            soak.ended.set()
            for thread in threads:
                thread.join()
        start = time.monotonic()
        up.wait_for_target()
        drained = time.monotonic() - start
        with Store.open(target.dsn) as store:
            _, doubled, there = count_records(store, soak.stored)
    acknowledged = RECORDS * sum(map(len, soak.stored.values()))
    return {
        "acknowledged": acknowledged,
        "lost": max(0, acknowledged - there),
        "doubled": doubled,
        "errors": len(soak.errors),
        "drained_s": round(drained),
    }


def _interrupt(target: Collector, up: Collector, seconds: float) -> None:
    """Keep the target away for some seconds, and kill the collector in that time."""
    target.stop(signal.SIGKILL)
    for _ in range(KILLS):
        time.sleep(seconds / KILLS)
        up.stop(signal.SIGKILL)
        up.start()
    target.start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=OUTAGE)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ltrain-forward-") as name:
        place = Path(name)
        file = place / "requests.bin"
        size = (str(LOAD.requests), str(LOAD.spans))
        subprocess.run([sys.executable, str(AGENTS / "talking.py"), str(file), *size], check=True)
        runs = [[cpu_ms(place, file, forwards) for forwards in (False, True)] for _ in range(RUNS)]
        without, with_target = map(median, zip(*runs, strict=True))
        found = outage(place, arguments.seconds)
    summary = {
        "name": "forward",
        "value": round(with_target, 2),
        "unit": f"CPU ms of the collector for a request of {LOAD.spans} spans with a target; "
        "the peer is the collector without one",
        "peer": round(without, 2),
        "ratio": round(with_target / without, 2),
        "runs": [[round(value, 2) for value in run] for run in runs],
        "outage_s": arguments.seconds,
        "kills": KILLS,
        **found,
    }
    print(json.dumps(summary))
    sys.exit(bool(found["lost"] or found["errors"]))


if __name__ == "__main__":
    main()
