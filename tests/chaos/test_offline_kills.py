"""Kills of `ltrain run --from-dataset`: the curve is that of a run which nothing interrupted.

Loop and learner are real. A version's weights depend on the optimizer's state in the checkpoint of
the version before it, so equal weights mean that this was equal too.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from tests.chaos.offline import OfflineProject, Victims
from tests.train.tiny import write_model

KILLS = int(os.environ.get("KILLS", "2"))
"""Kills of the test; `make bench-resume` sets 10."""
DATASETS = 2


@pytest.fixture
def projects(tmp_path: Path) -> Iterator[list[OfflineProject]]:
    """Yield two projects with the same model and the same datasets."""
    model = write_model(tmp_path / "tiny", seed=1)
    with ExitStack() as stack:
        made = []
        for name in ("whole", "killed"):
            # the path must be short enough for Ray's sockets
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lc-", dir="/tmp"))
            made.append(OfflineProject(tmp_path / name, DATASETS, Path(folder)))
            made[-1].prepare(model)
            stack.callback(made[-1].close)
        yield made


def draw_kills(count: int, seconds: float) -> dict[int, list[tuple[float, Victims]]]:
    """Return when the command of each dataset is killed, and what is.

    Args:
        count: number of kills; each is in its own part of a command's time.
        seconds: how long a command takes.
    """
    chance = Random(0)
    moments = [(number + chance.random()) / count * seconds for number in range(count)]
    chance.shuffle(moments)
    kills: dict[int, list[tuple[float, Victims]]] = {number: [] for number in range(DATASETS)}
    for place, moment in enumerate(moments):
        kills[place % DATASETS].append((moment, "everything" if place % 2 else "run"))
    return kills


@pytest.mark.nightly
def test_a_killed_run_has_the_curve_of_one_that_was_not(projects: list[OfflineProject]) -> None:
    whole, killed = projects
    began = time.monotonic()
    whole.train_all()
    killed.train_all(draw_kills(KILLS, (time.monotonic() - began) / DATASETS))
    assert [point.version for point in whole.curve()] == [1, 2]
    assert killed.curve() == whole.curve()
    for number, metrics in killed.metrics().items():
        assert metrics == whole.metrics()[number]
    # where all processes died, the next learner removes the scratch folder of the dead one
    left = [each for each in killed.left() if "ltrain-learner-" not in each]
    assert (whole.left(), left) == ([], [])
