"""examples/text_to_sql at a real server of SkyRL on the CPU, which trains and samples it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.support.skyrl import PYTHON, SkyRL
from benchmarks.support.skyrl_run import BACKEND, HELD_OUT, MODEL, SkyRLRun

from ltrain_train.policy import Policies

UPDATES = 3


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SkyRLRun]:
    if not PYTHON.exists():
        pytest.skip("there is no server of SkyRL: make setup-skyrl")
    with (
        tempfile.TemporaryDirectory(prefix="ls-", dir="/tmp") as home,
        SkyRL(MODEL, tmp_path, BACKEND) as server,
    ):
        made = SkyRLRun(tmp_path / "text_to_sql", Path(home), server)
        made.prepare()
        yield made


@pytest.mark.nightly
def test_a_server_of_skyrl_trains_and_samples_the_example(run: SkyRLRun) -> None:
    with run.start(UPDATES) as process:
        assert process.wait(3000) == 0, run.log
    journal = run.journal
    assert journal.finished and journal.updates == UPDATES
    published = [wave.published for wave in journal.waves if wave.mode == "train"]
    assert published == [1, 2, 3]
    assert set(published) <= set(Policies(run.home / ".ltrain").versions("sql"))
    assert [set(wave.outcomes) for wave in journal.waves] == [{"ok"}] * 5
    before, after = (wave for wave in journal.waves if wave.mode == "val")
    assert len(before.tasks) == len(after.tasks) == HELD_OUT
    assert before.score is not None and after.score is not None
    print(f"held-out score {before.score:.3f} before, {after.score:.3f} after")
    assert after.score >= before.score
