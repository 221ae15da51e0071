"""Kills during a run: every rollout counts once, no process is left, and the command finishes.

Loop, store, gateway, runner and learner are real; vLLM is a fake on a unix socket.
"""

import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from tests.chaos import driver
from tests.chaos.driver import Project, mounted


@pytest.fixture
def project(
    request: pytest.FixtureRequest, tmp_path: Path, temporary: Path, model: Path
) -> Iterator[Any]:
    made = driver.Project(tmp_path / "chaos", request.param, temporary)
    made.prepare(model)
    try:
        yield made
    finally:
        made.close()


def _second_run_is_refused(project: Any, run: Any) -> None:
    other = project.start()
    assert other.end() == 1
    assert f"The run chaos of {project.home} is in use by process {run.process.pid}" in other.text


def _kill_vllm(project: Any) -> None:
    project.kill("fake_vllm.py")


def _kill_vllm_for_long(project: Any) -> None:
    """Kill vLLM; its next start takes 30 seconds longer."""
    (project.folder / "away").touch()
    project.kill("fake_vllm.py")


def _kill_vllm_in_publication(project: Any) -> None:
    log = project.file("logs/vllm.log")
    before = log.read_text().count("reloading")
    driver.until(lambda: log.read_text().count("reloading") > before, "a publication")
    project.kill("fake_vllm.py")


def _kill_gateway(project: Any) -> None:
    project.kill("-m ltrain serve")


def _kill_gateways_guard(project: Any) -> None:
    project.kill("-m ltrain serve", guard=True)


def _kill_collector(project: Any) -> None:
    project.kill("-m ltrain up")


def _kill_learner(project: Any, run: Any) -> None:
    project.kill("-m ltrain_train.learner")
    assert run.end() == 1
    assert "ltrain: learner ended" in run.text
    assert project.left() == []


def _kill_run(project: Any, run: Any) -> None:
    run.process.kill()
    run.process.wait()


def _interrupt(project: Any, run: Any) -> None:
    driver.interrupt(run)
    time.sleep(0.7)


def _interrupt_twice(project: Any, run: Any) -> None:
    driver.interrupt(run)
    run.line("ltrain: stopping; the same command continues from here.")
    driver.interrupt(run)
    run.line("ltrain: still stopping; ")
    assert run.end() != 0
    assert project.left() == []


Harm = Callable[[Any], None]
End = Callable[[Any, Any], None]
HARMS: list[Harm] = [_kill_vllm, _kill_gateway, _kill_collector]
MORE_HARMS: list[Harm] = [_kill_vllm_for_long, _kill_vllm_in_publication, _kill_gateways_guard]
ENDS: list[End] = [_kill_learner, _kill_run]
MORE_ENDS: list[End] = [_interrupt_twice, _interrupt]
"""`_interrupt` and `_kill_run` may leave processes when the next command starts."""


@pytest.mark.parametrize(
    ("project", "harms"),
    [
        pytest.param(len(HARMS) + 1, HARMS, id="each", marks=pytest.mark.nightly),
        pytest.param(len(MORE_HARMS) + 1, MORE_HARMS, id="more", marks=pytest.mark.nightly),
    ],
    indirect=["project"],
)
def test_a_run_survives_the_death_of_its_services(project: Any, harms: list[Harm]) -> None:
    run = project.start()
    project.await_wave(run, 0)
    listening = project.listening()
    assert len(listening) > 0
    assert all(ip_address(address).is_loopback for address in listening), listening
    _second_run_is_refused(project, run)
    for wave, harm in enumerate(harms, 1):
        project.await_wave(run, wave)
        harm(project)
    run.finish()
    project.check()


@pytest.mark.parametrize(
    ("project", "ends"),
    [
        pytest.param(len(ENDS) + 1, ENDS, id="kills", marks=pytest.mark.nightly),
        pytest.param(len(MORE_ENDS) + 1, MORE_ENDS, id="interrupts", marks=pytest.mark.nightly),
    ],
    indirect=["project"],
)
def test_the_same_command_finishes_a_run_that_ended_in_any_way(
    project: Any, ends: list[End]
) -> None:
    for wave, end in enumerate(ends, 1):
        run = project.start()
        project.await_wave(run, wave)
        end(project, run)
    project.start().finish()
    project.check()


@pytest.fixture
def small_disk(project: Project) -> Iterator[Project]:
    """Yield the project with a disk of 16 MiB for its checkpoints."""
    with mounted(project, project.home / "runs", 16):
        yield project


@pytest.mark.nightly
@pytest.mark.parametrize("project", [2], indirect=True)
def test_a_full_disk_at_a_checkpoint_is_reported_and_free_space_fixes_it(small_disk: Any) -> None:
    project = small_disk
    ballast = project.file("runs/ballast")
    ballast.write_bytes(bytes(15 << 20))
    run = project.start()
    assert run.end() == 1
    assert f"ltrain: The disk of {project.home}/runs/chaos/checkpoints" in run.text
    assert "the checkpoint needs about 1.8 MB" in run.text
    assert "MB are free" in run.text and "Free space there" in run.text
    assert project.left() == []
    assert not any(project.file("runs/chaos/checkpoints").glob("*"))
    ballast.unlink()
    project.start().finish()
    project.check()
