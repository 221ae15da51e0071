"""Faults in each wave of a run, drawn by a seed or all in turn: nothing is lost or counted twice.

What must hold: report, dataset and store have the same rollouts with the same outcomes; no process
and no folder is left; the same command ends with status 0. A failure prints the faults.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos import drawn
from tests.chaos.driver import Project, mounted

DISK = 256
"""MiB of the disk of the home, which a fault fills or makes read-only."""
FAULTS = 10
"""Faults of one run, each in a wave of its own."""
WAVES = FAULTS + 4
"""Waves of one run: the first has no fault, and some pass during long ones."""
NIGHTLY = pytest.mark.nightly
SEEDS = [*range(2), *(pytest.param(seed, marks=NIGHTLY) for seed in range(2, 32))]
EVERY = drawn.every_fault()


@pytest.fixture
def project(tmp_path: Path, temporary: Path, model: Path) -> Iterator[Project]:
    made = Project(tmp_path / "chaos", WAVES, temporary)
    made.prepare(model)
    with mounted(made, made.home, DISK):
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_survives_drawn_faults(project: Project, tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    drawn.survive(drawn.draw(seed, FAULTS), project, drawn.Shim(tmp_path))


@NIGHTLY
@pytest.mark.parametrize("first", range(0, len(EVERY), FAULTS))
def test_a_run_survives_the_kill_and_the_stop_of_each_process_in_each_phase(
    project: Project, tmp_path: Path, first: int
) -> None:
    drawn.survive(EVERY[first : first + FAULTS], project, drawn.Shim(tmp_path))
