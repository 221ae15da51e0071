"""Kills and stops during runs with the real vLLM, the real learner and SmolLM2, by a seed.

What must hold is what `test_drawn_faults.py` checks with a fake vLLM and a tiny policy.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos import drawn
from tests.chaos.driver import Project

HERE = Path(__file__).parent
SMOLLM2 = HERE.parents[1] / ".ltrain" / "models" / "smollm2"
FAULTS, RUNS = 3, 10
WAIT = 1800.0
"""Seconds for what takes a minute on an idle machine: vLLM and the learner start again."""


@pytest.fixture
def project(tmp_path: Path, temporary: Path) -> Iterator[Project]:
    made = Project(tmp_path / "chaos", FAULTS + 1, temporary, source=HERE / "real", wait=WAIT)
    made.prepare(SMOLLM2)
    del made.environ["LTRAIN_VLLM_PYTHON"]
    try:
        yield made
    finally:
        made.close()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(RUNS))
def test_a_run_of_real_models_survives_kills_and_stops(
    project: Project, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    drawn.survive(drawn.draw(seed, FAULTS, ("kill", "stop")), project, drawn.Shim(tmp_path))
