"""`ltrain eval` with a real vLLM, which loads one version of a tiny policy after the other."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.end_to_end.conftest import TRAIN, load

from ltrain_train.policy import Policies

REWARD = """
from word_agent import FIRST

def first(task, result):
    return result["first"] in FIRST
"""
"""The first word is greedy, and so the same whenever a version answers the same task."""


@pytest.mark.nightly
def test_versions_of_a_tiny_policy_are_served_in_turn(project: Callable[[str], Any]) -> None:
    made, tiny = project("eval"), load(TRAIN / "tiny.py")
    policies = Policies(made.home)
    policies.register("two", made.model)
    draft = policies.draft("two")
    tiny.write_model(draft, seed=2)
    policies.register_files("two", draft, parent=0, dataset="d", recipe="r")
    (made.folder / "greedy.py").write_text(REWARD)
    lines = (made.folder / "tasks.jsonl").read_text().splitlines()[:60]
    (made.folder / "held-out.jsonl").write_text("\n".join(lines))
    options = ("--recipe", "ltrain.toml", "--reward", "greedy:first", "--json")
    versions = [text for number in (0, 1, 0) for text in ("--policy", f"two@{number}")]
    done = subprocess.run(
        made.command("eval", "held-out.jsonl", *versions, *options),
        env=made.environ,
        cwd=made.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, other, again = json.loads(done.stdout)["versions"]
    assert first["scores"] == again["scores"] != other["scores"]
    assert len(first["scores"]) == 60
    assert (again["difference"]["mean"], again["difference"]["interval"]) == (0.0, None)
    low, high = other["difference"]["interval"]
    assert low < other["difference"]["mean"] < high
    assert policies.current("two") == 0
    rows = made.sql(
        "SELECT Wave AS wave, toString(PolicyVersion) AS version, count() AS calls "
        "FROM otel.spans WHERE Mode = 'val' AND PolicyName = 'two' GROUP BY ALL ORDER BY wave"
    )
    assert [(row["version"], int(row["calls"])) for row in rows] == [
        ("0", 120),
        ("1", 120),
        ("0", 120),
    ]
