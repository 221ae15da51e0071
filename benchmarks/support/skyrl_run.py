"""Runs that a server of SkyRL trains and samples: of examples/text_to_sql, and of a tiny policy."""

import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learn import PROJECT, TINY, environment
from benchmarks.support.skyrl import KEY, SkyRL

from ltrain_instrument.errors import LtrainError
from ltrain_train.runs import Journal, PolicyJournal
from ltrain_transforms.recipe import Recipe

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "text_to_sql"
MODEL = ROOT / ".ltrain" / "models" / "smollm2"
TWO_TURN = """
[source]
run = "two-turn-skyrl"
[rollout]
tasks = "tasks.jsonl"
agent = "word_agent:solve"
reward = "word_reward:score"
rollouts_per_task = 8
tasks_per_wave = 4
timeout = 600
workers = 2
concurrency = 16
[[policy]]
name = "policy"
[[reward]]
name = "second"
evaluation = "reward"
[[reward]]
name = "tool-answers"
on = "tool"
when = "status = 'ok'"
value = "0.5"
credit_to = "requester"
[credit.outcome]
estimator = "grpo"
[credit.process]
returns = "reward_to_go"
baseline = "group_mean"
[train]
backend = "tinker"
loss = "vanilla"
learning_rate = 5e-3
lora_rank = 16
[train.tinker]
base_url = "{url}"
base_model = "{model}"
[serve]
on = "tinker"
"""
"""The recipe of tests/end_to_end/two_turn for a server of SkyRL."""


def write_text_to_sql(folder: Path, server: SkyRL, tasks: int, held_out: int) -> Path:
    """Write the example with short waves and a few held-out questions; return its recipe."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("results"))
    recipe = (folder / "skyrl.toml").read_text()
    recipe = recipe.replace("http://127.0.0.1:8700", server.url)
    recipe = recipe.replace("tasks_per_wave = 8", f"tasks_per_wave = {tasks}")
    recipe = recipe.replace("../../.ltrain/models/smollm2", str(server.model.absolute()))
    (folder / "skyrl.toml").write_text(recipe)
    lines = (folder / "val.jsonl").read_text().splitlines(keepends=True)
    simple = [line for line in lines if json.loads(line)["domain"] == "simple"]
    chosen = simple[:: len(simple) // held_out][:held_out]
    (folder / "val.jsonl").write_text("".join(chosen))
    return folder / "skyrl.toml"


def write_tiny_model(out: Path) -> Path:
    """Write the tiny random policy of the two-turn task, and return it."""
    subprocess.run([sys.executable, TINY, out, "1"], check=True, capture_output=True)
    return out


def write_two_turn(folder: Path, server: SkyRL, tasks: int = 480) -> Path:
    """Write the two-turn task; return its recipe."""
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    chance = random.Random(0)
    with (folder / "tasks.jsonl").open("w") as file:
        for number in range(tasks):
            words = (10, *(chance.randrange(512) for _ in range(4)), 20)
            text = " ".join(f"w{word}" for word in words)
            file.write(json.dumps({"id": f"t{number}", "input": text}) + "\n")
    recipe = TWO_TURN.format(url=server.url, model=server.model.absolute())
    (folder / "skyrl.toml").write_text(recipe)
    return folder / "skyrl.toml"


@dataclass(frozen=True, slots=True)
class SkyRLRun:
    """A recipe that names the server, and `.ltrain` in a folder beside."""

    recipe: Path
    model: Path
    home: Path
    """The parent of `.ltrain`; sockets need a short path."""

    def start(self, updates: int = 3) -> subprocess.Popen[str]:
        """Start the run, or go on with it."""
        command = [sys.executable, "-m", "ltrain", "run", self.recipe.name, "--from-clickhouse"]
        options = ["--model", str(self.model.absolute()), "--updates", str(updates)]
        with (self.home / "run.log").open("a") as log:
            return subprocess.Popen(
                [*command, *options],
                cwd=self.recipe.parent,
                env=self.environ(),
                stdout=log,
                stderr=log,
                text=True,
            )

    def environ(self) -> dict[str, str]:
        """Return the environment, the same for each start."""
        file = self.home / "environment.json"
        if not file.exists():
            made = environment(self.home)
            changed = {name: made[name] for name in made if made[name] != os.environ.get(name)}
            file.write_text(json.dumps(changed))
        own: dict[str, str] = json.loads(file.read_text())
        return {**os.environ, **own, "TINKER_API_KEY": KEY}

    @property
    def log(self) -> str:
        """The end of the output of all starts."""
        return (self.home / "run.log").read_text()[-4000:]

    def describe(self) -> str:
        """Return the waves that were trained, and the versions."""
        try:
            waves = self.journal.waves
        except (AssertionError, LtrainError):
            return "no wave"
        return ", ".join(f"{wave.mode} {wave.wave}: {wave.published}" for wave in waves)

    @property
    def journal(self) -> PolicyJournal:
        recipe = Recipe.load(self.recipe)
        journal = Journal.load(self.home / ".ltrain" / "runs" / str(recipe.source.run))
        assert journal is not None, self.log
        return journal.of(recipe.policy[0].name)
