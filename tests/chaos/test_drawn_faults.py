"""Faults that a seed draws, one in each wave: each rollout counts once, and everything agrees.

What must hold: report, dataset and store have the same rollouts with the same outcomes; no process
and no folder is left; the same command ends with status 0. A failure prints its seed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chaos import drawn, driver

WAVES = 10
"""Faults of one run."""
SEEDS = [
    *range(2),
    *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 30)),
]


@pytest.fixture
def project(tmp_path: Path, temporary: Path, model: Path) -> Iterator[Any]:
    made = driver.Project(tmp_path / "chaos", WAVES + 1, temporary)
    made.prepare(model)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_survives_drawn_faults(
    project: Any, tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    lengths = drawn.LONG if request.config.getoption("--nightly") else drawn.SHORT
    faults, clock = drawn.draw(seed, WAVES, lengths), drawn.Clock(tmp_path)
    project.environ |= clock.environ
    run = project.start()
    for wave, fault in enumerate(faults, 1):
        project.await_phase(run, wave, fault.phase)
        print(f"seed {seed}, wave {wave}: {fault}")
        drawn.do(fault, project, run, clock)
        if fault.may_end_run and run.ended:
            assert "Traceback" not in run.text, run.text
            run = project.start()
        assert not run.ended, run.text
    run.finish()
    project.check()
