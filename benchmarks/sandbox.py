"""Milliseconds from the start of an attempt to its command: in a sandbox, and without one."""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ltrain_train.sandboxes import Sandboxes, SandboxSettings
from ltrain_train.workers import agent_environment
from ltrain_transforms.recipe import Rollout

COMMAND = ["date", "+%s%N"]
"""Prints the time at which it runs."""
FILES = 100
"""Files of 10 kB in the workspace."""


def start_without(number: int) -> float:
    """Return the milliseconds until the command runs."""
    return _milliseconds(COMMAND)


def start_in(sandboxes: Sandboxes, environ: dict[str, str | None], number: int) -> float:
    """Return the milliseconds until the command runs in a sandbox, its files included."""
    with sandboxes.workspace_of({}) as workspace:
        room = sandboxes.open(f"s{number}", COMMAND, environ, workspace)
        try:
            return _milliseconds(room.argv)
        finally:
            sandboxes.end(room)


def _milliseconds(argv: Sequence[str]) -> float:
    began = time.time_ns()
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return (int(done.stdout) - began) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="ltrain-sandbox-") as name:
        folder = Path(name)
        (folder / "work").mkdir()
        for number in range(FILES):
            (folder / "work" / f"{number}.txt").write_bytes(b"line of text\n" * 800)
        rollout = Rollout(tasks="t.jsonl", agent="date", sandbox="bubblewrap", workspace="work")
        settings = SandboxSettings.from_section(rollout, folder)
        assert settings is not None
        home = folder / "home"
        environ = agent_environment(home, {}) | {"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"}
        with Sandboxes(settings, Path(sys.executable), home) as sandboxes:
            kinds: dict[str, Callable[[int], float]] = {
                "without": start_without,
                "sandbox": partial(start_in, sandboxes, environ),
            }
            for kind, start in kinds.items():
                taken = sorted(start(number) for number in range(runs))
                print(
                    f"{kind}: {statistics.median(taken):.1f} ms at the median, "
                    f"{taken[int(0.9 * runs)]:.1f} ms at the 90th percentile of {runs}"
                )


if __name__ == "__main__":
    main()
