"""Kills of `ltrain run --from-dataset`: the curve is that of a run which nothing interrupted.

Loop and learner are real. `make bench-resume` kills at ten random moments.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.chaos.offline import OfflineProject
from tests.train.tiny import write_model


@pytest.fixture
def projects(tmp_path: Path) -> Iterator[list[OfflineProject]]:
    """Yield two projects with the same model and the same two datasets."""
    model = write_model(tmp_path / "tiny", seed=1)
    with ExitStack() as stack:
        made = []
        for name in ("whole", "killed"):
            # the path must be short enough for Ray's sockets
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lc-", dir="/tmp"))
            made.append(OfflineProject(tmp_path / name, 2, Path(folder)))
            made[-1].prepare(model)
            stack.callback(made[-1].close)
        yield made


def test_a_killed_run_has_the_curve_of_one_that_was_not(projects: list[OfflineProject]) -> None:
    whole, killed = projects
    whole.train_all()
    killed.train_all({0: [(1.0, "run")], 1: [(6.0, "everything")]})
    assert [point.version for point in whole.curve()] == [1, 2]
    assert killed.curve() == whole.curve()
    assert killed.metrics() == whole.metrics()
    assert (whole.left(), killed.left()) == ([], [])
