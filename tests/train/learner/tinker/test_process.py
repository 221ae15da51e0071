"""The learner's process with the backend tinker, which a kill ends at any time."""

from pathlib import Path

import pytest
from tests.tinker_server import TinkerServer
from tests.train.learner.tinker.conftest import objective, train

from ltrain_instrument.errors import LtrainError
from ltrain_train.learner.client import LearnerClient
from ltrain_train.policy import check_adapter


def test_a_killed_process_leaves_no_run_and_its_successor_continues(
    server: TinkerServer, tiny: Path, samples: Path, tmp_path: Path
) -> None:
    server.limit = 1

    def client(checkpoint: Path | None = None) -> LearnerClient:
        return LearnerClient(
            train(server), tiny, directory=tmp_path, policy="p", checkpoint=checkpoint
        )

    with client() as learner:
        assert learner.step(samples, objective(server), version=0).steps == 1
        learner.save(tmp_path / "one")
        learner._started.process.stop()
        with pytest.raises(LtrainError):
            learner.step(samples, objective(server), version=1)
    assert len(server.adapters) == 1  # of the dead process
    with client(tmp_path / "one") as learner:
        report = learner.step(samples, objective(server), version=1)
        assert (report.steps, report.total_steps) == (1, 2)
        learner.export_adapter(tmp_path / "adapter")
        check_adapter(tmp_path / "adapter", tiny)
        assert learner.share() is None
    assert server.adapters == {}
    assert server.keys - {""} == {"tml-test"}
    log = (tmp_path / "learner.log").read_text()
    assert "tml-test" not in log
    assert "tml-test" not in (tmp_path / "learner-p.jsonl").read_text()
