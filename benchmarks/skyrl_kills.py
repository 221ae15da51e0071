"""`ltrain run` or its server of SkyRL killed at drawn moments: does the same command go on?

Each kill is in its own part of a command's time, by a seed. A killed command is started again, and
a killed server beside the running command. At the end each update must have been made once.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from benchmarks.support.skyrl import PYTHON, SkyRL
from benchmarks.support.skyrl_run import BACKEND, MODEL, SkyRLRun

AWAY = 5.0
"""Seconds for which a killed server is away."""


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


def survive(run: SkyRLRun, kills: list[tuple[float, str]], updates: int) -> int:
    """Kill the victims in turn until the run ends; return how many were killed."""
    done = 0
    process = run.start(updates)
    for moment, victim in kills:
        time.sleep(moment)
        if process.poll() is not None:
            break
        print(f"kills the {victim} {moment:.0f} s later", file=sys.stderr, flush=True)
        done += 1
        if victim == "run":
            process.kill()
            process.wait()
            process = run.start(updates)
        else:
            run.server.kill()
            time.sleep(AWAY)
            run.server.start()
    while process.wait():
        print(run.log, file=sys.stderr)
        raise SystemExit("The command did not go on.")
    return done


def check(run: SkyRLRun, updates: int) -> None:
    """Exit with an error unless each update was made once, from the version before it."""
    journal = run.journal
    waves = [wave for wave in journal.waves if wave.mode == "train"]
    numbers, versions = [wave.wave for wave in waves], [wave.published for wave in waves]
    chain = [wave.version for wave in waves[1:]] == versions[:-1]
    if not (journal.finished and numbers == list(range(updates)) and all(versions) and chain):
        raise SystemExit(f"waves {numbers} published {versions}: {run.log}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of the run")
    parser.add_argument("--server-kills", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=240.0, help="in which one kill may be")
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--python", type=Path, default=PYTHON, help="with SkyRL 0.4.0")
    options = parser.parse_args()
    kills = draw_kills(options.kills, options.server_kills, options.seconds, options.seed)
    with (
        tempfile.TemporaryDirectory(prefix="ls-", dir="/tmp") as folder,
        SkyRL(MODEL, Path(folder), BACKEND, options.python) as server,
    ):
        run = SkyRLRun(Path(folder) / "text_to_sql", Path(folder), server)
        run.prepare()
        done = survive(run, kills, options.updates)
        check(run, options.updates)
    print(
        json.dumps(
            {
                "name": "skyrl-kills",
                "value": done,
                "unit": "kills after which the same command made each update once",
                "peer": len(kills),
                "ratio": None,
            }
        )
    )


if __name__ == "__main__":
    main()
