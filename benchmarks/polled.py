"""Ingest beside a page of `ltrain ui` that follows the run: spans a second with and without it."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median

from benchmarks.ingest import AGENTS, collector
from benchmarks.support.servers import ui_pages

from ltrain_collector.store import Store

REQUESTS, SPANS, CLIENTS = 480, 512, 16
RUNS = 5
INTERVAL, PAUSE, MAX_PAUSE = 3, 40, 30
"""Seconds between the requests of a page, or its time so often, and at most so many: `ui.js`."""
MAX_LOSS = 0.05
PAGE = "/runs/bench"


@contextmanager
def polled(sql: str, home: Path) -> Iterator[list[float]]:
    """Serve the pages of a store, and request one as a browser does; yield its seconds."""
    ended, seconds = threading.Event(), list[float]()
    with ui_pages(sql, home) as (process, client):
        for task in Path(process, "task").iterdir():  # off the core of the collector
            os.sched_setaffinity(int(task.name), {1})
        client.get("/")  # imports what pages need
        client.get(PAGE)

        def poll() -> None:
            tag, pause = "", float(INTERVAL)
            while not ended.wait(pause):
                began = time.monotonic()
                response = client.get(PAGE, headers={"If-None-Match": tag})
                seconds.append(time.monotonic() - began)
                pause = min(MAX_PAUSE, max(INTERVAL, PAUSE * seconds[-1]))
                tag = response.headers.get("etag", "")
                if response.status_code not in (200, 304):
                    sys.exit(f"{PAGE} failed: {response.text}")

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            yield seconds
        finally:
            ended.set()
            thread.join()


def ingest(file: Path, place: Path, is_polled: bool) -> tuple[float, list[float]]:
    """Return the spans a second of a new collector, and the seconds of the pages beside it."""
    with tempfile.TemporaryDirectory(dir=place) as name, collector(Path(name) / "store") as up:
        _, otlp, sql = up
        pages = polled(sql, Path(name)) if is_polled else nullcontext(list[float]())
        with pages as seconds:
            client = [sys.executable, str(AGENTS / "exporting.py"), otlp, str(file), str(CLIENTS)]
            began = time.monotonic()
            subprocess.run(
                ["taskset", "-c", "1", *client, "0"], check=True, stdout=subprocess.DEVNULL
            )
            spent = time.monotonic() - began
        with Store.open(sql) as store:
            rows = int(store.query("SELECT count() AS rows FROM otel.spans").item())
    if rows != REQUESTS * SPANS:
        sys.exit(f"{REQUESTS * SPANS} spans were sent and {rows} are stored")
    return rows / spent, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="the folder for temporary stores")
    arguments = parser.parse_args()
    rates: dict[bool, list[float]] = {False: [], True: []}
    seconds = list[float]()
    with tempfile.TemporaryDirectory(prefix="ltrain-polled-", dir=arguments.dir) as name:
        file = Path(name) / "requests.bin"
        talking = [sys.executable, str(AGENTS / "talking.py"), str(file), str(REQUESTS), str(SPANS)]
        subprocess.run(talking, check=True)
        for _ in range(RUNS):
            for is_polled in (False, True):
                rate, pages = ingest(file, Path(name), is_polled)
                rates[is_polled].append(rate)
                seconds += pages
                print(f"{'beside a page' if is_polled else 'alone'}: {rate:.0f}", file=sys.stderr)
    alone, beside = median(rates[False]), median(rates[True])
    loss = 1 - median(b / a for a, b in zip(rates[False], rates[True], strict=True))
    print(
        json.dumps(
            {
                "name": "polled",
                "value": round(loss, 3),
                "unit": f"share of ingest lost to a page that polls, at most {MAX_LOSS}",
                "peer": None,
                "ratio": None,
                "spans_a_second": [round(alone), round(beside)],
                "page_s": [round(median(seconds), 2), round(max(seconds), 2)],
                "requests": len(seconds),
            }
        )
    )
    sys.exit(loss > MAX_LOSS)


if __name__ == "__main__":
    main()
