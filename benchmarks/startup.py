"""CPU seconds of `ltrain --help`, beside a Python process that only imports typer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

RUNS = 7
LTRAIN = str(Path(sys.executable).with_name("ltrain"))
PEER = "import typer; typer.main.get_command(typer.Typer(callback=lambda: None))"


def cpu_seconds(*command: str) -> float:
    """Run `command` and return its user and system time."""
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def main() -> None:
    help_, peer = [], []
    cpu_seconds(LTRAIN, "--help")  # the first run compiles
    for _ in range(RUNS):  # alternating, so that other load affects both
        help_.append(cpu_seconds(LTRAIN, "--help"))
        peer.append(cpu_seconds(sys.executable, "-c", PEER))
    value, base = median(help_), median(peer)
    print(
        json.dumps(
            {
                "name": "startup",
                "value": round(value, 3),
                "unit": "CPU s of `ltrain --help`, median",
                "peer": round(base, 3),
                "ratio": round(value / base, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
