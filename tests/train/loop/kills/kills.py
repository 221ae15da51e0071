"""Draws kills: which process dies, and when."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from subprocess import TimeoutExpired

from tests.chaos.driver import until
from tests.train.loop.kills.project import LightProject


KILLS = int(os.environ.get("KILLS", "10"))
"""Kills of each test."""
SEED = int(os.environ.get("SEED", "0")) or time.time_ns() % 1_000_000
"""Of the draw; each test prints it. What is killed does not depend on time, the moment may."""

WRITES = {
    "os.rename *": 6,  # versions, datasets, and the first event of a journal
    "open runs/*/journal.jsonl": 6,
    "open runs/*/attempts.jsonl": 40,
    "open services/spool/*": 40,
    "* policies/*": 6,
    "* datasets/*": 60,
}
"""Writes of the main process, before one of which it dies, and about how many of them an update
has."""


@dataclass(frozen=True)
class Kill:
    """One kill."""

    crash: str = ""
    """The write before which the main process dies; '': the time decides."""
    seconds: float = 0.0
    everything: bool = False
    """Whether the services die too, or the main process alone."""

    def strike(self, project: LightProject) -> None:
        """Start the command, and kill it unless it ends before."""
        run = project.start_run(self.crash)
        with suppress(TimeoutExpired):
            if self.crash:
                run.process.wait(60)
            else:
                until(lambda: run.ended or project.shows_work(), "the first work")
                run.process.wait(self.seconds)
        if self.everything:
            project.kill_everything()
        run.process.kill()
        status = run.process.wait()
        print(f"{self}: {status}", *run.text.splitlines()[-1:], flush=True)
        assert status in (-9, 0), run.text


def draw_kills(count: int = KILLS, seed: int = SEED) -> list[Kill]:
    """Return kills of all kinds: half at a write, others after some seconds."""
    print(f"To repeat: SEED={seed} KILLS={count}")
    chance, kills = Random(seed), []
    for number in range(count):
        if number % 2:
            seconds, everything = 1.5 * chance.random(), chance.random() < 0.4
            kills.append(Kill(seconds=seconds, everything=everything))
        else:
            write = chance.choice(sorted(WRITES))
            kills.append(Kill(f"{write} {chance.randrange(WRITES[write])}"))
    return kills
