"""examples/text_to_sql at a real server of SkyRL on the CPU, which trains and samples it."""

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks.support.skyrl import PYTHON, SkyRL
from benchmarks.support.skyrl_run import MODEL, SkyRLRun, write_text_to_sql

from ltrain_train.policy import Policies

UPDATES, TASKS, HELD_OUT = 3, 2, 4
BACKEND = {
    "max_lora_adapters": 4,
    "max_lora_rank": 16,
    "train_micro_batch_size": 4,
    "sample_max_num_sequences": 8,
}
"""A batch is filled up to the last two sizes, so that small ones compute less."""
TIMEOUT = 4500
"""Seconds of the run, of which JAX compiles for several minutes."""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SkyRLRun]:
    if not PYTHON.exists():
        pytest.skip("there is no server of SkyRL: make setup-skyrl")
    with (
        tempfile.TemporaryDirectory(prefix="ls-", dir="/tmp") as home,
        SkyRL(MODEL, tmp_path, BACKEND) as server,
    ):
        yield SkyRLRun(
            write_text_to_sql(tmp_path / "project", server, TASKS, HELD_OUT), MODEL, Path(home)
        )


@pytest.mark.nightly
def test_a_server_of_skyrl_trains_and_samples_the_example(run: SkyRLRun) -> None:
    with run.start(UPDATES) as process:
        try:
            assert process.wait(TIMEOUT) == 0, run.log
        finally:
            process.kill()
    journal = run.journal
    assert journal.finished and journal.updates == UPDATES
    trained = [wave for wave in journal.waves if wave.mode == "train"]
    assert [wave.published for wave in trained] == [1, 2, 3]
    assert all(abs(wave.metrics["drift_k3"]) < 0.01 for wave in trained)
    assert all(wave.metrics["grad_norm"] > 0 for wave in trained)
    policies = Policies(run.home / ".ltrain")
    adapters = [
        (policies.path("sql", version) / "adapter_model.safetensors").read_bytes()
        for version in (1, 2, 3)
    ]
    assert all(one != other for one, other in pairwise(adapters))
    assert [set(wave.outcomes) for wave in journal.waves] == [{"ok"}] * 5
    before, after = (wave for wave in journal.waves if wave.mode == "val")
    assert len(before.tasks) == len(after.tasks) == HELD_OUT
    assert before.score is not None and after.score is not None
    print(f"held-out score {before.score:.3f} before, {after.score:.3f} after")
