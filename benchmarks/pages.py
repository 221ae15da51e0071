"""Pages of `ltrain ui` on a store of 10 million spans: seconds until each is answered."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from statistics import median

import httpx
from benchmarks import transforms
from benchmarks.support.servers import LTRAIN, started
from setup.markdown import table

SPANS = 10_000_000
RUNS = 40
WAVE_TASKS = 16
"""Tasks of a wave; each has eight rollouts of 16 spans."""
TOKENS = 40
"""Tokens of a chat: pages of many rollouts read no messages."""
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
    ids = [md5(str(number).encode()).hexdigest().upper() for number in range(0, rollouts, 997)]
    last = rollouts // RUNS // (8 * WAVE_TASKS) - 1
    yield PageBar("runs", ["/"], 0.3)
    yield PageBar("run", [f"/runs/bench-{number}" for number in range(1, 9)], 0.3)
    yield PageBar("wave", [f"/runs/bench-{number}/waves/{last}" for number in range(1, 9)], 0.3)
    yield PageBar("list", ["/rollouts"], 0.2)
    yield PageBar("list of a run", [f"/rollouts?run=bench-{number}" for number in range(1, 9)], 0.2)
    yield PageBar("find by 8 characters", [f"/find?id={name[:8]}" for name in ids], 0.1)
    yield PageBar("tree", [f"/rollouts/{name}" for name in ids], 0.3)


def measure(client: httpx.Client, page: PageBar) -> tuple[float, float]:
    """Return the seconds of the first request, and the median of the others."""

    def get(number: int) -> float:
        began = time.monotonic()
        response = client.get(page.addresses[number % len(page.addresses)])
        if response.is_error:
            sys.exit(f"{response.url} failed: {response.text}")
        return time.monotonic() - began

    first, *others = (get(number) for number in range(REQUESTS + 1))
    return first, median(others)


def measure_pages(store: Path, home: Path, rollouts: int) -> Iterator[tuple[PageBar, float, float]]:
    command = [LTRAIN, "ui", "--port", "0", "--store", f"chdb://{store}"]
    environment = {"LTRAIN_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    with started(command, r"open (http\S+)", **environment) as (_, link):
        address, _, code = link.partition("/#")
        with httpx.Client(base_url=address, timeout=600) as client:
            client.post("/session", content=code).raise_for_status()
            client.get("/sql").raise_for_status()  # the server imports what every page needs
            for page in list_pages(rollouts):
                first, then = measure(client, page)
                print(f"{page.name}: {first:.3f}, {then:.3f}", file=sys.stderr, flush=True)
                yield page, first, then


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
        [page.name, f"{first:.2f} s", f"{then:.2f} s", f"{page.seconds} s"]
        for page, first, then in measured
    ]
    print(table(HEAD, rows))
    slow = [page.name for page, _, then in measured if then > page.seconds]
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
