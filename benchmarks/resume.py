"""`ltrain run --from-dataset` killed at random moments: is the curve that of an uninterrupted run?

A tiny policy is trained on one dataset after the other, in one folder without a kill and in another
with a SIGKILL at moments that are spread over the time of a command. Half of the kills end the main
process alone, whose children must end with it.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from random import Random

from tests.chaos.offline import OfflineProject, Victims
from tests.train.tiny import write_model

DATASETS = 3


def draw_kills(count: int, seconds: float, seed: int) -> dict[int, list[tuple[float, Victims]]]:
    """Return when the command of each dataset is killed: one moment of each part of its time."""
    chance = Random(seed)
    moments = [(number + chance.random()) / count * seconds for number in range(count)]
    chance.shuffle(moments)
    kills: dict[int, list[tuple[float, Victims]]] = {number: [] for number in range(DATASETS)}
    for place, moment in enumerate(moments):
        victims: Victims = "everything" if place % 2 else "run"
        kills[place % DATASETS].append((moment, victims))
    return kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lc-", dir="/tmp") as folder:
        root = Path(folder)
        model = write_model(root / "tiny", seed=1)
        projects = []
        for name in ("whole", "killed"):
            (root / f"{name}-tmp").mkdir()
            projects.append(OfflineProject(root / name, DATASETS, root / f"{name}-tmp"))
            projects[-1].prepare(model)
        whole, killed = projects
        began = time.monotonic()
        whole.train_all()
        seconds = (time.monotonic() - began) / DATASETS
        kills = draw_kills(options.kills, seconds, options.seed)
        print(json.dumps({"seconds_of_a_command": round(seconds, 1), "kills": kills}), flush=True)
        killed.train_all(kills)
        curve, own = whole.curve(), killed.curve()
        equal = [one == other for one, other in zip(curve, own, strict=True)]
        same_metrics = all(
            whole.metrics()[number] == metrics for number, metrics in killed.metrics().items()
        )
        print(
            json.dumps(
                {
                    "name": "resume",
                    "value": sum(equal),
                    "unit": f"of {DATASETS} versions equal the uninterrupted run's: weights, "
                    "checkpoint, rollouts",
                    "peer": DATASETS,
                    "ratio": None,
                    "equal_metrics": same_metrics,
                    "left_behind": killed.left(),
                }
            )
        )


if __name__ == "__main__":
    main()
