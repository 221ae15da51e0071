"""Pages of `ltrain ui` on a store of 10 million spans: seconds until each is answered."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
from benchmarks import transforms
from benchmarks.support.servers import ui_pages
from setup.markdown import table

SPANS = 10_000_000
RUNS = 40
WAVE_TASKS = 16
"""Tasks of a wave; each has eight rollouts of 16 spans."""
TOKENS = 80
"""Tokens of a chat: pages of many rollouts read no messages."""
LIVE = "data-live"
"""A page with this text is requested again by the browser."""
INTERVAL = 3
"""Seconds until the browser requests a page again."""
REQUESTS = 5
"""Requests of each page after the first."""
HEAD = ("page", "first", "then", "bar")


@dataclass(frozen=True, slots=True)
class PageBar:
    """A page, and the seconds in which it should be answered."""

    name: str
    addresses: Sequence[str]
    """They take turns."""
    seconds: float


def list_pages(rollouts: int) -> Iterator[PageBar]:
    """Yield the pages of a store with so many rollouts."""
    ids = [transforms.rollout_id(number) for number in range(0, rollouts, 997)]
    last = rollouts // RUNS // (8 * WAVE_TASKS) - 1
    yield PageBar("runs again", ["/"], 0.3)
    yield PageBar("run", [f"/runs/bench-{number}" for number in range(1, 9)], 0.3)
    yield PageBar("wave", [f"/runs/bench-{number}/waves/{last}" for number in range(1, 9)], 0.3)
    yield PageBar("list", ["/rollouts"], 0.2)
    yield PageBar("list of a run", [f"/rollouts?run=bench-{number}" for number in range(1, 9)], 0.2)
    yield PageBar("find by 8 characters", [f"/find?id={name[:8]}" for name in ids], 0.1)
    yield PageBar("tree", [f"/rollouts/{name}" for name in ids], 0.3)


@dataclass(frozen=True, slots=True)
class Times:
    """The seconds of a page."""

    page: str
    first: float
    then: float
    """The median of the later requests; of the first table of runs, until it has all figures."""
    bar: float
    judged: float
    """The seconds that the bar is about."""


def measure(client: httpx.Client, page: PageBar) -> Times:
    """Request a page several times."""

    def get(number: int) -> float:
        began = time.monotonic()
        response = client.get(page.addresses[number % len(page.addresses)])
        if response.is_error:
            sys.exit(f"{response.url} failed: {response.text}")
        return time.monotonic() - began

    first, *others = (get(number) for number in range(REQUESTS + 1))
    then = median(others)
    return Times(page.name, first, then, page.seconds, then)


def measure_first_runs(client: httpx.Client) -> Times:
    """Request the table of runs until it has all figures, as the browser does."""
    began = time.monotonic()
    page = client.get("/")
    first = time.monotonic() - began
    while LIVE in page.text:
        time.sleep(INTERVAL)
        page = client.get("/")
    return Times("runs: the table, then all figures", first, time.monotonic() - began, 0.3, first)


def measure_pages(store: Path, home: Path, rollouts: int) -> Iterator[Times]:
    """Serve a store, and yield the times of its pages."""
    with ui_pages(f"chdb://{store}", home) as (_, client):
        client.get("/sql", params={"query": "SELECT 1"}).raise_for_status()  # opens the store
        yield measure_first_runs(client)
        yield from (measure(client, page) for page in list_pages(rollouts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=SPANS)
    parser.add_argument("--store", type=Path, help="a filled store, or the folder of a new one")
    parser.add_argument("--dir", help="the folder for temporary stores")
    arguments = parser.parse_args()
    rollouts = arguments.spans // transforms.SPANS
    with tempfile.TemporaryDirectory(prefix="ltrain-pages-", dir=arguments.dir) as name:
        store = arguments.store or Path(name) / "store"
        if not store.exists():
            transforms.fill(store, rollouts, tasks=WAVE_TASKS, runs=RUNS, tokens=TOKENS)
        measured = list(measure_pages(store, Path(name) / "home", rollouts))
    rows = [
        [each.page, *(f"{seconds:.2f} s" for seconds in (each.first, each.then)), f"{each.bar} s"]
        for each in measured
    ]
    print(table(HEAD, rows))
    slow = [each.page for each in measured if each.judged > each.bar]
    print(
        json.dumps(
            {
                "name": "pages",
                "value": len(slow),
                "unit": "pages that miss their bar",
                "peer": None,
                "ratio": None,
                "slow": slow,
            }
        )
    )
    sys.exit(bool(slow))


if __name__ == "__main__":
    main()
