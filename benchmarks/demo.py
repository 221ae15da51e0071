"""The demo from a cold start, seeds 0 to 2: seconds, held-out score, and drift of the server."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

from ltrain_train.loop import Journal

LTRAIN = str(Path(sys.executable).with_name("ltrain"))
MODEL = Path(".ltrain/models/smollm2")
SEEDS = (0, 1, 2)


def run(seed: int, home: Path) -> dict[str, Any]:
    """Run the demo once and read its journal."""
    start = time.monotonic()
    command = [LTRAIN, "demo", "--seed", str(seed), "--home", str(home), "--model", str(MODEL)]
    subprocess.run(command, check=True, env={**os.environ, "COLUMNS": "100"})
    wall = time.monotonic() - start
    journal = Journal.load(home / "runs" / "text-to-sql")
    assert journal is not None
    scores = [wave.evaluations["reward"] for wave in journal.waves if wave.mode == "val"]
    updates = sum(wave.published is not None for wave in journal.waves)
    drift = [wave.metrics["drift_k3"] for wave in journal.waves if "drift_k3" in wave.metrics]
    outcome = {"before": scores[0], "after": scores[-1], "s": round(wall), "updates": updates}
    return {"seed": seed, **outcome, "drift_k3": [float(f"{each:.2g}") for each in drift]}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ltrain-demo-") as folder:
        runs = [run(seed, Path(folder) / str(seed)) for seed in SEEDS]
    for each in runs:
        print(json.dumps(each))
    print(
        json.dumps(
            {
                "name": "demo",
                "value": round(mean(each["after"] - each["before"] for each in runs), 3),
                "unit": "rise of the greedy score on 96 held-out questions, mean of the seeds",
                "peer": None,
                "ratio": None,
                "seconds": [each["s"] for each in runs],
            }
        )
    )


if __name__ == "__main__":
    main()
