"""`ltrain run --from-dataset` killed at ten random moments: the curve of an uninterrupted run?

It runs the test of it with more kills: SIGKILL of the main process alone, or of all processes, each
in its own tenth of a command's time. Weights, rollouts and metrics of every version must be equal.
"""

import argparse
import json
import os
import subprocess
import sys

TEST = "tests/chaos/test_offline_kills.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    kills = parser.parse_args().kills
    command = [sys.executable, "-m", "pytest", "-q", TEST]
    done = subprocess.run(command, env={**os.environ, "KILLS": str(kills)}, stdout=sys.stderr)
    print(
        json.dumps(
            {
                "name": "resume",
                "value": 0 if done.returncode else kills,
                "unit": "kills after which the curve equals the uninterrupted one",
                "peer": kills,
                "ratio": None,
            }
        )
    )


if __name__ == "__main__":
    main()
