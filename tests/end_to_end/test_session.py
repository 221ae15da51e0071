"""`ltrain.train` in a Python session, with an agent and a reward that the session defines."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import polars as pl

SESSION = """
import json
import ltrain
import word_agent, word_reward

ANSWERED = 0.25

class Solver:
    def __init__(self, used):
        self.used = used

    def __call__(self, task, llm):
        return word_agent.solve(task, llm) | {"used": self.used}

solver = Solver("a session")

def solve(task, llm):
    return solver(task, llm)

run = ltrain.train(
    "ltrain.toml",
    agent=solve,
    reward=lambda task, result: {"reward": ANSWERED * (result["used"] == "a session"),
                                 "true": word_reward.first(result)},
    tasks=[{"id": f"s{n}", "input": f"w10 w{n} w7 w8 w9 w20"} for n in range(12)],
    validation=[{"id": "v", "input": "w10 w1 w2 w3 w4 w20"}],
    model="tiny",
    updates=1,
)
print(json.dumps({"name": run.name, "policy": run.policy, "version": run.version,
                  "rows": run.dataset(0).counts["samples"]}))
run.waves.write_parquet("waves.parquet")
run.curve().write_parquet("curve.parquet")
"""


def test_a_session_trains_its_own_functions(project: Callable[[str], Any]) -> None:
    made = project("session")
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        env=made.environ,
        cwd=made.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Run two-turn starts from two@0" in done.stdout
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["name"], result["policy"], result["version"]) == ("two-turn", "two", 1)
    assert result["rows"] > 0
    waves = pl.read_parquet(made.folder / "waves.parquet")
    assert waves["mode"].to_list() == ["val", "train", "val"]
    assert waves["rollouts"].to_list() == [1, 96, 1]
    assert waves["reward"].to_list() == [0.25] * 3, "the session's reward judged every rollout"
    assert waves["published"].to_list() == [None, 1, None]
    assert pl.read_parquet(made.folder / "curve.parquet")["version"].to_list() == [0, 1]
    modules = list((made.home / "sessions" / "two-turn").glob("session_*.py"))
    assert len(modules) == 1
