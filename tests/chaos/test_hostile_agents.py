"""A run whose agents fill, block or slow it: they fail, and the honest ones do not notice.

Loop, collector, gateway, runner and learner are real; each attempt of the agent is a process.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.driver import Project
from tests.chaos.hostile.hostile_agent import WAYS

HERE = Path(__file__).parent
TASKS, EACH = 40, 2
"""Tasks of the wave, and rollouts of each."""
ERRORS = {
    *("forges", "kills its parent", "kills its group", "writes an end"),
    *("prints lines", "prints one line", "prints errors"),
}
TIMEOUTS = {"ignores signals", "sleeps", "stops", "computes"}
"""Ways by their outcome; the others return a guess, which is worth nothing."""


@pytest.fixture
def project(tmp_path: Path, temporary: Path, model: Path) -> Iterator[Project]:
    made = Project(tmp_path / "chaos", 1, temporary, source=HERE / "hostile", wave=TASKS * EACH)
    made.prepare(model)
    made.environ["PATH"] = f"{Path(sys.executable).parent}:{made.environ['PATH']}"
    honest = [f"w{number} w7" for number in range(TASKS - len(WAYS))]
    tasks = [{"id": f"t{number}", "input": how} for number, how in enumerate([*WAYS, *honest])]
    (made.folder / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    try:
        yield made
    finally:
        made.close()


@pytest.mark.nightly
def test_hostile_attempts_count_and_honest_ones_are_ok_at_once(project: Project) -> None:
    project.start().finish()
    assert project.left() == []
    journal = project.journal()
    assert journal.finished
    inputs = {f"t{number}": how for number, how in enumerate(WAYS)}
    ends: dict[str, set[tuple[str, int]]] = {}
    for each in journal.completed["train", 0].rollouts:
        how = inputs.get(each.task, "honest")
        ends.setdefault(how, set()).add((each.outcome, each.attempt))
    expected = dict.fromkeys([*WAYS, "honest"], "ok")
    expected |= dict.fromkeys(ERRORS, "error") | dict.fromkeys(TIMEOUTS, "timeout")
    assert ends == {how: {(outcome, 1)} for how, outcome in expected.items()}, project.failures()
    project.check_waves(journal)
    worth = "SELECT task, groupUniqArray(value) AS v FROM otel.evaluations WHERE source = 'runner' "
    rewards = {row["task"]: row["v"] for row in project.sql(f"{worth} GROUP BY task")}
    earned = {task: set(values) for task, values in rewards.items() if task not in inputs}
    assert len(earned) == TASKS - len(WAYS) and set.union(*earned.values()) <= {0.5, 1.0}
    assert all(rewards.get(task, [0.0]) == [0.0] for task in inputs), rewards
