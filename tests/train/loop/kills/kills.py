"""Draws kills of a command: which of its processes die, and when."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from subprocess import TimeoutExpired

from tests.chaos.driver import WAIT, until
from tests.property_examples import examples
from tests.train.loop.kills.project import LightProject

KILLS = int(os.environ.get("KILLS", examples(4, change=2)))
"""Kills of each test."""
SEED = int(os.environ.get("SEED", "1"))
"""Of the draw; each test prints it. With one seed the same writes are cut off, while the threads
and processes of a run may have another order."""


@dataclass(frozen=True)
class Kill:
    """One kill."""

    crash: str = ""
    """The write before which the main process dies; '': the time decides."""
    seconds: float = 0.0
    everything: bool = False
    """Whether the services die too, or the main process alone."""
    loading: bool = False
    """Whether it dies while the gateway loads a version."""

    def strike(self, project: LightProject) -> None:
        """Start the command, and kill it unless it ends before."""
        loads = project.count_loads()
        run = project.start_run(self.crash)
        if self.loading:
            until(lambda: run.ended or project.count_loads() > loads, "a publication")
        elif self.crash:
            run.process.wait(WAIT)
        else:
            until(lambda: run.ended or project.shows_work(), "the first work")
            with suppress(TimeoutExpired):
                run.process.wait(self.seconds)
        if self.everything:
            project.kill_everything()
        run.process.kill()
        status = run.process.wait()
        print(f"{self}: {status}", *run.text.splitlines()[-1:], flush=True)
        assert status in (-9, 0), run.text


def draw_kills(writes: Mapping[str, int], count: int = KILLS, seed: int = SEED) -> list[Kill]:
    """Return kills of all kinds.

    Args:
        writes: writes of the main process, as in `start.py`, and how many of them come soon.
        count: number of kills.
        seed: of the draw.
    """
    print(f"To repeat: SEED={seed} KILLS={count}")
    chance, kills = Random(seed), list[Kill]()
    for number in range(count):
        if number % 5 < 3:
            write = chance.choice(sorted(writes))
            kills.append(Kill(f"{write} {chance.randrange(writes[write])}"))
        else:
            kills.append(Kill(seconds=1.5 * chance.random(), everything=number % 5 == 4))
    chance.shuffle(kills)
    return kills
