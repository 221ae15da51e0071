"""A run of examples/text_to_sql that a server of SkyRL trains and samples."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learn import environment
from benchmarks.support.skyrl import KEY, SkyRL

from ltrain_train.runs import Journal, PolicyJournal
from ltrain_transforms.recipe import Recipe

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "text_to_sql"
MODEL = ROOT / ".ltrain" / "models" / "smollm2"
BACKEND: Mapping[str, int] = {
    "max_lora_adapters": 4,
    "max_lora_rank": 16,
    "train_micro_batch_size": 4,
    "sample_max_num_sequences": 16,
}
HELD_OUT = 24


@dataclass(frozen=True, slots=True)
class SkyRLRun:
    """A copy of the example, whose recipe names the server, and `.ltrain` in a folder beside."""

    folder: Path
    home: Path
    """The parent of `.ltrain`; sockets need a short path."""
    server: SkyRL

    def prepare(self) -> None:
        """Write the folder of the recipe, with a few held-out questions."""
        shutil.copytree(EXAMPLE, self.folder, ignore=shutil.ignore_patterns("results"))
        recipe = (self.folder / "skyrl.toml").read_text()
        recipe = recipe.replace("http://127.0.0.1:8700", self.server.url)
        model = str(self.server.model.absolute())
        recipe = recipe.replace("../../.ltrain/models/smollm2", model)
        (self.folder / "skyrl.toml").write_text(recipe)
        lines = (self.folder / "val.jsonl").read_text().splitlines(keepends=True)
        simple = [line for line in lines if json.loads(line)["domain"] == "simple"]
        chosen = simple[:: len(simple) // HELD_OUT][:HELD_OUT]
        (self.folder / "val.jsonl").write_text("".join(chosen))

    def start(self, updates: int = 3) -> subprocess.Popen[str]:
        """Start the run, or go on with it."""
        command = [sys.executable, "-m", "ltrain", "run", "skyrl.toml", "--from-clickhouse"]
        options = ["--model", str(self.server.model.absolute()), "--updates", str(updates)]
        with (self.home / "run.log").open("a") as log:
            return subprocess.Popen(
                [*command, *options],
                cwd=self.folder,
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

    @property
    def journal(self) -> PolicyJournal:
        recipe = Recipe.load(self.folder / "skyrl.toml")
        journal = Journal.load(self.home / ".ltrain" / "runs" / str(recipe.source.run))
        assert journal is not None, self.log
        return journal.of("sql")
