"""`ltrain run` or its server of SkyRL killed at drawn requests: does the same command go on?

A tiny policy learns the two-turn task, with waves of 32 rollouts and no validation. A seed draws
each point: after so many requests of a kind since the last kill, and a part of a second. A killed
command is started again, and a killed server beside the running command; a command that ends
because its server was away is started again, too. At the end each update must have been made once.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from random import Random

from benchmarks.support.skyrl import PYTHON, SkyRL
from benchmarks.support.skyrl_run import SkyRLRun, write_tiny_model, write_two_turn

BACKEND = {
    "max_lora_adapters": 8,
    "max_lora_rank": 16,
    "train_micro_batch_size": 16,
    "sample_max_num_sequences": 16,
}
KINDS = {
    "asample": 150,
    "forward_backward": 7,
    "optim_step": 3,
    "save_weights": 3,
    "save_weights_for_sampler": 3,
    "create_model": 1,
}
"""Requests, and the most of each to wait for: those of about three updates."""
AWAY = 5.0
"""Seconds for which a killed server is away."""
LIMIT = 1800.0
"""Seconds in which a command must reach the point of a kill, or make the remaining updates."""


@dataclass(frozen=True, slots=True)
class Point:
    """When to kill, and what."""

    victim: str
    kind: str
    count: int
    """Requests of the kind since the last kill."""
    delay: float
    """Seconds after the last of them."""


def draw_points(kills: int, servers: int, seed: int) -> list[Point]:
    """Return the points in the order of the kills, each kind about as often."""
    chance = Random(seed)
    points = []
    for victim, number in (("run", kills), ("server", servers)):
        kinds = chance.sample(list(KINDS), len(KINDS))
        for kind in islice(cycle(kinds), number):
            points.append(Point(victim, kind, chance.randint(1, KINDS[kind]), chance.random()))
    chance.shuffle(points)
    return points


@dataclass(slots=True)
class Ordeal:
    """A run, the process of its command, and its server, with the kills of both."""

    run: SkyRLRun
    server: SkyRL
    updates: int
    counts: Counter[str] = field(default_factory=Counter)
    """Kills by victim, and the commands that ended because the server was away."""
    began: float = field(default_factory=time.monotonic)
    _process: subprocess.Popen[str] | None = None
    _until: float = 0.0
    """When the command must have come to the next point."""

    def kill(self, point: Point) -> bool:
        """Kill a victim at a point; return False if the run is complete before."""
        before, self._until = self.server.count(point.kind), time.monotonic() + LIMIT
        while self.server.count(point.kind) < before + point.count:
            if not self._is_going():
                return False
        time.sleep(point.delay)
        self._note(f"kills the {point.victim} after {point.count} {point.kind}")
        self.counts[point.victim] += 1
        if point.victim == "server":
            self.server.kill()
            time.sleep(AWAY)
            self.server.start()
        else:
            self.close()
        return True

    def wait(self) -> None:
        """Wait until the run is complete."""
        self._until = time.monotonic() + LIMIT
        while self._is_going():
            pass

    def close(self) -> None:
        """Kill the command."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _is_going(self) -> bool:
        """Wait a moment, start a command that has ended, and return False if it is complete."""
        if self._process is None:
            self._process = self.run.start(self.updates)
        try:
            status = self._process.wait(0.05)
        except subprocess.TimeoutExpired:
            if time.monotonic() > self._until:
                raise SystemExit(f"The command makes no progress: {self.run.log}") from None
            return True
        if status:
            self._note(f"the command ended: {self.run.log.splitlines()[-1]}")
            self.counts["ended"] += 1
            if self.counts["ended"] > self.counts["server"]:
                raise SystemExit(f"The command did not go on: {self.run.log}")
            self._process = None
        return bool(status)

    def _note(self, text: str) -> None:
        seconds = time.monotonic() - self.began
        print(f"{seconds:.0f} s: {text}; {self.run.describe()}", file=sys.stderr, flush=True)


def check(run: SkyRLRun, updates: int) -> None:
    """Exit with an error unless each update was made once, from the version before it."""
    journal = run.journal
    waves = [wave for wave in journal.waves if wave.mode == "train"]
    numbers, versions = [wave.wave for wave in waves], [wave.published for wave in waves]
    chain = [wave.version for wave in waves[1:]] == versions[:-1]
    once = len(set(versions)) == updates and all(versions)
    if not (journal.finished and numbers == list(range(updates)) and once and chain):
        raise SystemExit(f"waves {numbers} published {versions}: {run.log}")
    drift = max(abs(wave.metrics["drift_k3"]) for wave in waves)
    rewards = [wave.evaluations["true"] for wave in waves]
    print(f"drift up to {drift:.2g}; reward {rewards[0]:.3f} to {rewards[-1]:.3f}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of the run")
    parser.add_argument("--server-kills", type=int, default=3)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--python", type=Path, default=PYTHON, help="with SkyRL 0.4.0")
    options = parser.parse_args()
    points = draw_points(options.kills, options.server_kills, options.seed)
    with tempfile.TemporaryDirectory(prefix="ls-", dir="/tmp") as name:
        folder = Path(name)
        model = write_tiny_model(folder / "tiny")
        with SkyRL(model, folder, BACKEND, options.python) as server:
            run = SkyRLRun(write_two_turn(folder / "two_turn", server), model, folder)
            ordeal = Ordeal(run, server, options.updates)
            try:
                for point in points:
                    if not ordeal.kill(point):
                        break
                ordeal.wait()
            finally:
                ordeal.close()
            check(run, options.updates)
    counts = ordeal.counts
    done = counts["run"] + counts["server"]
    print(
        json.dumps(
            {
                "name": "skyrl-kills",
                "value": done,
                "unit": f"kills, {counts['server']} of them of the server, after which the same "
                f"command made each of {options.updates} updates once; {counts['ended']} times it "
                "ended because the server was away",
                "peer": len(points),
                "ratio": None,
            }
        )
    )
    if done < len(points):
        raise SystemExit("The run was complete before all kills: raise --updates.")


if __name__ == "__main__":
    main()
