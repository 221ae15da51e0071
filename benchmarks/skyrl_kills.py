"""`ltrain run` or its server of SkyRL killed at drawn moments: does the same command go on?

A tiny policy learns the two-turn task, with waves of 32 rollouts and no validation.
Each kill is in its own part of a command's time, by a seed. A killed command is started again, and
a killed server beside the running command; a command that ends because its server was away is
started again, too. At the end each update must have been made once.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
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
AWAY = 5.0
"""Seconds for which a killed server is away."""
GIVES_UP = 600.0
"""Seconds after the last kill in which the command must end."""


def draw_kills(kills: int, servers: int, seconds: float, seed: int) -> list[tuple[float, str]]:
    """Return the victims and the seconds that a command has run when they are killed."""
    chance = Random(seed)
    victims = ["run"] * kills + ["server"] * servers
    chance.shuffle(victims)
    moments = [
        (number + chance.random()) / len(victims) * seconds for number in range(len(victims))
    ]
    chance.shuffle(moments)
    return list(zip(moments, victims, strict=True))


@dataclass(slots=True)
class Ordeal:
    """A run, the process of its command, and its server, with the kills of both."""

    run: SkyRLRun
    server: SkyRL
    updates: int
    counts: Counter[str] = field(default_factory=Counter)
    """Kills by victim, and the starts of commands that had ended by themselves."""
    began: float = field(default_factory=time.monotonic)
    _process: subprocess.Popen[str] | None = None

    def kill(self, victim: str, moment: float) -> bool:
        """Kill a victim so many seconds later; return False if the run is complete by then."""
        if not self._goes_on_for(moment):
            return False
        self._note(f"kills the {victim}")
        self.counts[victim] += 1
        if victim == "server":
            self.server.kill()
            time.sleep(AWAY)
            self.server.start()
        else:
            self._kill_command()
            self._start()
        return True

    def wait(self) -> None:
        """Wait until the run is complete."""
        if self._goes_on_for(GIVES_UP * self.updates):
            self._kill_command()
            raise SystemExit(f"The command does not end: {self.run.log}")

    def _goes_on_for(self, seconds: float) -> bool:
        """Wait, and return False as soon as the run is complete."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            process = self._process or self._start()
            try:
                status = process.wait(left)
            except subprocess.TimeoutExpired:
                break
            if status == 0:
                return False
            self._note(f"the command ended: {self.run.log.splitlines()[-1]}")
            self.counts["ended"] += 1
            if self.counts["ended"] > self.counts["server"]:
                raise SystemExit(f"The command did not go on: {self.run.log}")
            self._process = None
        return True

    def _start(self) -> subprocess.Popen[str]:
        self._process = self.run.start(self.updates)
        return self._process

    def _kill_command(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of the run")
    parser.add_argument("--server-kills", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120.0, help="in which one kill may be")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--python", type=Path, default=PYTHON, help="with SkyRL 0.4.0")
    options = parser.parse_args()
    kills = draw_kills(options.kills, options.server_kills, options.seconds, options.seed)
    with tempfile.TemporaryDirectory(prefix="ls-", dir="/tmp") as name:
        folder = Path(name)
        model = write_tiny_model(folder / "tiny")
        with SkyRL(model, folder, BACKEND, options.python) as server:
            run = SkyRLRun(write_two_turn(folder / "two_turn", server), model, folder)
            ordeal = Ordeal(run, server, options.updates)
            for moment, victim in kills:
                if not ordeal.kill(victim, moment):
                    break
            ordeal.wait()
            check(run, options.updates)
    counts = ordeal.counts
    done = counts["run"] + counts["server"]
    print(
        json.dumps(
            {
                "name": "skyrl-kills",
                "value": done,
                "unit": f"kills, {counts['server']} of them of the server, after which the same "
                f"command made each of {options.updates} updates once; it ended by itself "
                f"{counts['ended']} times",
                "peer": len(kills),
                "ratio": None,
            }
        )
    )
    if done < len(kills):
        raise SystemExit("The run was complete before all kills: raise --updates.")


if __name__ == "__main__":
    main()
