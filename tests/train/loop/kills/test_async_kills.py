"""Kills of an asynchronous run: no rollout is trained on twice or lost, and the run finishes.

Loop, store, gateway, runner and workers are real; vLLM and the learner are fakes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.train.loop.kills.invariants import check_journal, check_lineage, check_rollouts
from tests.train.loop.kills.kills import draw_kills
from tests.train.loop.kills.project import POLICY, LightProject, opened_project

from ltrain_train.policy import Policies
from ltrain_train.runs.journal import Journal

SAMPLES = 4
RECIPE = f"""
[source]
run = "chaos"

[rollout]
tasks = "tasks.jsonl"
test = "test.jsonl"
agent = "kills_agent:solve"
reward = "kills_agent:score"
rollouts_per_task = {SAMPLES}
tasks_per_wave = 2
spare_tasks = 2
timeout = 60
workers = 1
concurrency = 16

[[policy]]
name = "{POLICY}"

[[reward]]
name = "second"
evaluation = "reward"

[credit.outcome]
estimator = "grpo"

[serve]
publish = "adapter"

[train]
mode = "async"
loss = "vanilla"
lora_rank = 2
updates = 1000 # the last command has another budget
keep_versions = 100
dtype = "fp32"
drift_warning = 1e6
drift_limit = 1e6
"""

WRITES = {
    "open runs/*/journal.jsonl": 7,
    "os.write runs/*/attempts.jsonl": 45,
    "open services/spool/*": 6,
    "os.rename *": 6,
    "os.* policies/*": 6,
    "* datasets/*": 60,
}
"""About as many of each as an update has, or fewer."""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[LightProject]:
    with opened_project(tmp_path / "p", recipe=RECIPE) as made:
        yield made


def test_no_rollout_is_trained_on_twice(project: LightProject) -> None:
    folder = project.home / "runs" / "chaos"
    project.start_services()
    for kill in draw_kills(WRITES):
        kill.strike(project)
        project.start_services()
    updates = _budget(folder)
    project.arguments = ("--updates", str(updates))
    project.start_run().finish()
    journal = Journal.load(folder)
    assert journal is not None
    check_journal(journal, Policies(project.home), POLICY, updates)
    assert [wave.wave for wave in journal.waves if wave.mode == "test"] == [0, updates]
    trained = check_lineage(project.home, POLICY)
    check_rollouts(project.home, journal, project.environ["LTRAIN_STORE"], SAMPLES, trained)
    project.check_commands()


def _budget(folder: Path) -> int:
    """Return updates with which the run has a wave that is not yet dispatched."""
    journal = Journal.load(folder)
    return 3 + (0 if journal is None else journal.updates)
