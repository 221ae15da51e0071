"""CPU seconds of `ltrain --help` and of `ltrain sql`, beside imports of the libraries they need."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.support.process_cost import NO_BYTECODE, children_cpu_seconds
from benchmarks.support.servers import LTRAIN, collector

RUNS = 7


@dataclass(frozen=True)
class Case:
    """A command, and the statement of Python that it is compared with."""

    command: tuple[str, ...]
    imports: str

    @property
    def peer(self) -> tuple[str, ...]:
        return (sys.executable, "-c", self.imports)


CASES = (
    Case(
        ("--help",),
        "import typer; typer.main.get_command(typer.Typer(callback=lambda: None))",
    ),
    Case(
        ("sql", "SELECT 1"),
        "import typer, rich.table, polars, pyarrow, clickhouse_connect.driver.httpclient",
    ),
)


def cost(command: tuple[str, ...], environment: Mapping[str, str]) -> float:
    """Run `command` and return its CPU seconds."""
    before = children_cpu_seconds()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    return children_cpu_seconds() - before


def measure(case: Case, environment: Mapping[str, str]) -> dict[str, object]:
    """Return the medians of a command and of its peer, in turns: other load affects both."""
    command = (LTRAIN, *case.command)
    cost(command, environment)  # the first run compiles
    own, peer = [], []
    for _ in range(RUNS):
        own.append(cost(command, environment))
        peer.append(cost(case.peer, environment))
    return {
        "name": "startup",
        "value": round(median(own), 3),
        "unit": f"CPU s of `{' '.join(('ltrain', *case.command))}`, median",
        "peer": round(median(peer), 3),
        "ratio": round(median(own) / median(peer), 2),
    }


def main() -> None:
    inherited = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    with tempfile.TemporaryDirectory() as folder, collector(Path(folder)) as variables:
        for case in CASES:
            print(json.dumps(measure(case, {**inherited, **variables})))


if __name__ == "__main__":
    main()
