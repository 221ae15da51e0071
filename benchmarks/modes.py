"""The demo's training with synchronous and with asynchronous waves: rollouts a minute of each."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

LTRAIN = str(Path(sys.executable).with_name("ltrain"))
MODEL = Path(".ltrain/models/smollm2").resolve()
EXAMPLE = Path("examples/text_to_sql")
SETTINGS = {
    "sync": "",
    "async": 'mode = "async"\n',
    "async, 4 spare tasks": 'mode = "async"\n',
}
"""Lines of [train] by the name of the setting."""


def run(setting: str, updates: int, folder: Path) -> dict[str, Any]:
    """Train without validation; return the rate after the first update, and the last wave's."""
    shutil.copytree(EXAMPLE, folder)
    recipe = folder / "ltrain.toml"
    text = recipe.read_text().replace('validation = "val.jsonl"\n', "")
    if "spare" in setting:
        text = text.replace("[rollout]\n", "[rollout]\nspare_tasks = 4\n")
    recipe.write_text(text.replace("[train]\n", f"[train]\n{SETTINGS[setting]}"))
    command = [LTRAIN, "run", str(recipe), "--model", str(MODEL), "--updates", str(updates)]
    environment = {**os.environ, "LTRAIN_HOME": str(folder / "home")}
    ended: list[float] = []
    rollouts: list[int] = []
    seconds: dict[str, list[float]] = {}
    with subprocess.Popen(
        [*command, "--json"], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            wave = json.loads(line)
            ended.append(time.monotonic())
            rollouts.append(wave["rollouts"])
            for name, value in wave["seconds"].items():
                seconds.setdefault(name, []).append(value)
    assert process.returncode == 0
    return {
        "setting": setting,
        "rollouts_a_minute": round(sum(rollouts[1:]) / (ended[-1] - ended[0]) * 60, 1),
        "median_seconds": {name: round(median(values), 1) for name, values in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    results = []
    for number in range(options.runs):
        for setting in SETTINGS:
            with tempfile.TemporaryDirectory(prefix="ltrain-modes-") as folder:
                results.append(run(setting, options.updates, Path(folder) / str(number)))
            print(json.dumps(results[-1]), flush=True)
    rates = {
        setting: median(r["rollouts_a_minute"] for r in results if r["setting"] == setting)
        for setting in SETTINGS
    }
    print(
        json.dumps(
            {
                "name": "modes",
                "value": rates["async"],
                "unit": "rollouts a minute with asynchronous waves",
                "peer": rates["sync"],
                "ratio": round(rates["async"] / rates["sync"], 2),
                "rates": rates,
            }
        )
    )


if __name__ == "__main__":
    main()
