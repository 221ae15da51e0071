"""A run whose learner and vLLM have one GPU in turn, and kills while vLLM sleeps.

Loop, store, gateway, runner and workers are real; vLLM, the learner and their GPU are fakes, which
fail where two of them use the GPU at a time.
"""

import json
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError

import pytest
from tests.chaos.driver import Run, until
from tests.train.gpus import H100, install_nvidia_smi
from tests.train.loop.kills.invariants import check_journal, check_lineage
from tests.train.loop.kills.project import POLICY, LightProject

from ltrain_train.policy import Policies
from ltrain_train.runs.journal import Journal

UPDATES = 3
LEARNER = ("ltrain_train.learner.service",)
VLLM = ("fake_vllm.py",)
GATEWAY = ("-m ltrain serve",)
RECIPE = f"""
[source]
run = "chaos"

[rollout]
tasks = "tasks.jsonl"
agent = "kills_agent:solve"
reward = "kills_agent:score"
rollouts_per_task = 4
tasks_per_wave = 2
workers = 1

[[policy]]
name = "{POLICY}"

[[reward]]
name = "second"
evaluation = "reward"

[credit.outcome]
estimator = "reinforce_pp"

[train]
colocate = "swap"
lora_rank = 0
updates = {UPDATES}
keep_versions = 100
dtype = "fp32"
drift_warning = 1e6
drift_limit = 1e6
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[LightProject]:
    # the path must be short enough for sockets
    with tempfile.TemporaryDirectory(prefix="ls-", dir="/tmp") as folder:
        made = LightProject(tmp_path / "p", 0, Path(folder), recipe=RECIPE)
        made.prepare_files()
        programs = install_nvidia_smi(made.folder / "bin", H100)
        made.environ |= {
            "FAKE_GPU": str(made.folder / "gpu"),
            "FAKE_LEARNER_SECONDS": "1.5",
            "PATH": f"{programs}:{made.environ['PATH']}",
        }
        try:
            yield made
        finally:
            made.close()


def is_asleep(project: LightProject) -> bool:
    """Return whether vLLM sleeps, as the gateway tells."""
    with suppress(OSError):
        try:
            urllib.request.urlopen(f"{project.environ['LTRAIN_GATEWAY']}/health", timeout=2).close()
        except HTTPError as answer:
            with answer:
                return "vLLM sleeps" in json.load(answer)["reason"]
    return False


def await_sleep(project: LightProject, run: Run) -> None:
    until(lambda: run.ended or is_asleep(project), "the learner's turn", 120)
    assert not run.ended, run.text


def check_end(project: LightProject, run: Run) -> None:
    """Check that the run has ended well, and what it left."""
    run.finish()
    journal = Journal.load(project.home / "runs" / "chaos")
    assert journal is not None
    check_journal(journal, Policies(project.home), POLICY, UPDATES)
    check_lineage(project.home, POLICY)
    # a wave whose rollouts all have one score trains nothing
    published = [wave for wave in journal.waves if wave.published is not None]
    assert published and all("swap" in wave.seconds for wave in published)
    until(lambda: not project.processes(), "the end of all processes", 30)


def test_vllm_and_the_learner_have_the_gpu_in_turn(project: LightProject) -> None:
    run = project.start_run()
    await_sleep(project, run)
    check_end(project, run)
    vllm = project.file("logs/vllm.log").read_text().splitlines()[0]
    assert "--enable-sleep-mode --gpu-memory-utilization 0.92" in vllm
    assert "out of memory" not in project.file("logs/vllm.log").read_text()


@pytest.mark.parametrize(
    "killed",
    [GATEWAY, pytest.param(VLLM, marks=pytest.mark.nightly)],
    ids=["gateway", "vllm"],
)
def test_a_server_that_dies_in_its_sleep_starts_after_the_learners_turn(
    project: LightProject, killed: tuple[str, ...]
) -> None:
    run = project.start_run()
    await_sleep(project, run)
    project.kill(*killed)
    check_end(project, run)
    assert "out of memory" not in project.file("logs/vllm.log").read_text()


def test_a_run_that_dies_in_the_learners_turn_goes_on(project: LightProject) -> None:
    first = project.start_run()
    await_sleep(project, first)
    first.process.kill()
    first.process.wait()
    # the gateway and the learner of the first run may live on until the second one ends them
    left = {process.pid for process in project.processes()}
    second = project.start_run()
    until(lambda: left.isdisjoint(process.pid for process in project.processes()), "their end", 120)
    await_sleep(project, second)
    project.kill(*LEARNER)
    assert second.end() == 1
    assert "learner ended by signal SIGKILL" in second.text
    third = project.start_run()
    await_sleep(project, third)
    project.kill_everything()
    third.process.wait()
    check_end(project, project.start_run())


@pytest.mark.nightly
def test_a_gateway_that_runs_already_is_no_part_of_a_swap(project: LightProject) -> None:
    project.start_services()
    run = project.start_run()
    assert run.end() == 1
    assert 'train.colocate = "swap" needs the gateway that the run starts' in run.text
    recipe = project.folder / "ltrain.toml"
    recipe.write_text(recipe.read_text().replace('"swap"', '"split"'))
    project.environ.pop("FAKE_GPU")
    project.start_run().finish()
