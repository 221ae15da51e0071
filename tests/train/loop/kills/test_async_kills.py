"""Kills of an asynchronous run: no rollout is trained on twice or lost, and the run finishes.

Loop, store, gateway, runner and workers are real; vLLM and the learner are fakes.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from subprocess import TimeoutExpired

import pytest
from tests.train.loop.kills.invariants import check_journal, check_lineage, check_rollouts, describe
from tests.train.loop.kills.project import POLICY, LightProject

from ltrain_train.loop.journal import Journal
from ltrain_train.policy import Policies

KILLS = int(os.environ.get("KILLS", "10"))
SEED = int(os.environ.get("SEED", "0")) or time.time_ns() % 1_000_000
UPDATES = 8
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
updates = {UPDATES}
keep_versions = 100
dtype = "fp32"
drift_warning = 1e6
drift_limit = 1e6
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[LightProject]:
    # the path must be short enough for sockets
    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as folder:
        made = LightProject(tmp_path / "p", UPDATES, Path(folder), recipe=RECIPE)
        made.prepare_files()
        try:
            yield made
        finally:
            made.close()


def test_no_rollout_is_trained_on_twice(project: LightProject) -> None:
    print(f"SEED={SEED}")
    chance, kills = Random(SEED), 0
    while kills < KILLS:
        project.start_services()
        began = time.monotonic()
        if chance.random() < 0.7:
            crash = f"* * {chance.randrange(120)}"
            run = project.start_run(crash)
            what = crash
            run.process.wait(100)
        else:
            seconds = 1.0 + 4 * chance.random()
            run = project.start_run()
            with suppress(TimeoutExpired):
                run.process.wait(seconds)
            everything = chance.random() < 0.3
            what = f"{seconds:.1f} s, {everything=}"
            if everything:
                project.kill_everything()
            else:
                run.process.kill()
            run.process.wait()
        kills += 1
        journal = Journal.load(project.home / "runs" / "chaos")
        events = 0 if journal is None else len(journal.events)
        print(kills, what, run.process.returncode, run.text[-150:].strip(), f"{time.monotonic() - began:.1f} s", events)
        assert run.process.returncode in (-9, 0), run.text
        if journal is not None and journal.finished:
            break
    project.start_services()
    if journal is None or not journal.finished:
        began = time.monotonic()
        project.start_run().finish()
        print(f"last {time.monotonic() - began:.1f} s")
    journal = Journal.load(project.home / "runs" / "chaos")
    assert journal is not None
    check_journal(journal, Policies(project.home), POLICY, UPDATES)
    trained = check_lineage(project.home, POLICY)
    store = project.environ["LTRAIN_STORE"]
    check_rollouts(project.home, journal, store, SAMPLES, trained)
    print(describe(project.home))
