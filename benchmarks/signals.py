"""CPU of a build with rules on signals in relation to one without, on HTTP spans inside tools."""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.support.process_cost import run_measured
from benchmarks.transforms import EVERY_KIND, RECIPE, SPANS, fill

CLIENTS = 4
"""HTTP spans inside the tool of each rollout; every ninth one got a 500."""
HTTP = f"""arrayMap(i -> (17 + i, 152000000 + i * 1000000, 14, 'GET',
    'opentelemetry.instrumentation.httpx', 900000, worker,
    map('http.request.method', 'GET', 'url.full', 'http://shop.local/items', 'server.address',
        'shop.local', 'http.response.status_code', if((n + i) % 9 = 0, '500', '200')),
    if((n + i) % 9 = 0, 'Error', 'Ok')), range({CLIENTS}))"""
RULES = """
[[reward]]
use = "signal"

[[reward]]
use = "http-failed"
"""


def build(folder: Path, place: Path, recipe: str) -> float:
    """Run `ltrain build` and return its CPU seconds."""
    path = place / "ltrain.toml"
    path.write_text(recipe)
    command = [sys.executable, "-m", "ltrain", "build", str(path), "--store", f"chdb://{folder}"]
    return run_measured([*command, "--out", str(place / "out"), "--workers", "1", "--replace"]).cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ltrain-signals-") as name:
        place = Path(name)
        fill(place / "store", arguments.rollouts, kinds=(*EVERY_KIND, HTTP))
        recipes = {"without": RECIPE, "with": RECIPE + RULES}
        costs: dict[str, list[float]] = {kind: [] for kind in recipes}
        for _ in range(arguments.runs):
            for kind, recipe in recipes.items():
                costs[kind].append(build(place / "store", place, recipe))
    plain, ruled = (statistics.median(costs[kind]) for kind in recipes)
    spans = arguments.rollouts * (SPANS + CLIENTS)
    print(f"{spans} spans, {arguments.runs} runs of each, median CPU of a build:")
    print(f"{plain:.1f} s without rules on signals, {ruled:.1f} s with two: {ruled / plain:.2f}")


if __name__ == "__main__":
    main()
