"""Errors of a server of the Tinker API, each a sentence."""

from pathlib import Path
from typing import Any

import pytest
import tinker
from tests.tinker_server import TinkerServer
from tests.train.learner.tinker.conftest import Start, objective, train

from ltrain_train.errors import BadRun, LearnerFailed
from ltrain_train.learner.backend import find_backend
from ltrain_train.learner.checkpoint import check_base, fingerprint
from ltrain_train.learner.protocol import Job
from ltrain_train.policy import TinkerWeights

STEP: dict[str, Any] = {"version": 0, "dataset": "d", "versions": {}}


def test_a_missing_key_is_an_error_before_a_process_starts(
    server: TinkerServer, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job.from_train(train(server), base=tiny, policy="p")
    monkeypatch.delenv("TINKER_API_KEY")
    with pytest.raises(BadRun, match=r"no TINKER_API_KEY in the environment.*begins with tml-"):
        find_backend("tinker").environment(job)


def test_an_adapter_without_a_checkpoint_is_an_error_before_a_process_starts(
    server: TinkerServer, tiny: Path, tmp_path: Path
) -> None:
    job = Job.from_train(train(server), base=tiny, policy="p", adapter=tmp_path)
    with pytest.raises(BadRun, match=r"cannot take an adapter.*`ltrain policy use p@0`"):
        find_backend("tinker").environment(job)


def test_a_quota_is_waited_for_and_reported(
    server: TinkerServer, start: Start, samples: Path
) -> None:
    trainer = start()
    server.faults["optim_step"] = [429, 429]
    report = trainer.step(samples, objective(server), **STEP)
    assert report.steps == 1
    [warning] = report.warnings
    assert "refused 2 requests with status 429 (its quota is used up)" in warning


def test_a_model_that_the_server_lacks_is_an_error(server: TinkerServer, start: Start) -> None:
    server.model = "another"
    with pytest.raises(BadRun, match=r"no model 'tiny'.*one of: another\."):
        start(tinker=train(server, tinker={"base_model": "tiny", "base_url": server.url}).tinker)


def test_no_server_is_an_error(server: TinkerServer, start: Start) -> None:
    options = train(server, tinker={"base_model": "tiny", "base_url": "http://127.0.0.1:9"}).tinker
    with pytest.raises(
        BadRun, match=r"No server of the Tinker API answers at http://127\.0\.0\.1:9"
    ):
        start(tinker=options)


@pytest.mark.parametrize(
    ("paths", "version"), [(["/api/v1/client/config"], "0.25.0"), ([], "0.16.1")]
)
def test_another_sdk_than_the_servers_is_named(
    paths: list[str],
    version: str,
    server: TinkerServer,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.paths = paths
    monkeypatch.setattr(tinker, "__version__", "0.38.0")
    with pytest.raises(BadRun, match=rf"SDK {version}.*has 0\.38\.0.*tinker=={version}"):
        start()


def test_a_refused_key_is_an_error(server: TinkerServer, start: Start) -> None:
    server.faults["create_session"] = [401]
    with pytest.raises(BadRun, match=r"refused the key in TINKER_API_KEY \(status 401\)"):
        start()


def test_a_server_without_a_place_is_an_error(server: TinkerServer, start: Start) -> None:
    server.limit = 0
    with pytest.raises(LearnerFailed, match="All places for adapters"):
        start()


def test_another_aggregation_is_refused(
    server: TinkerServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.tinker_policy import Adapter

    update = Adapter.update

    def root(
        self: Adapter, options: dict[str, float], *, sums: bool, clips: bool
    ) -> dict[str, Any]:
        metrics = update(self, options, sums=sums, clips=clips)
        return {name: value**0.5 for name, value in metrics.items()}

    monkeypatch.setattr(Adapter, "update", root)
    with pytest.raises(BadRun, match="neither sums its losses nor takes their mean"):
        start()


def test_a_server_that_reports_no_norm_is_taken_for_one_as_documented(
    server: TinkerServer, start: Start, samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.tinker_policy import Adapter

    update = Adapter.update
    monkeypatch.setattr(Adapter, "update", lambda *goal, **options: update(*goal, **options) and {})
    trainer = start()
    report = trainer.step(samples, objective(server), **STEP)
    assert report.steps == 1 and "grad_norm" not in report.metrics


def test_answers_are_heartbeats(
    server: TinkerServer, start: Start, samples: Path, tmp_path: Path
) -> None:
    trainer = start(scratch=tmp_path)
    (tmp_path / "heartbeat").unlink()
    trainer.server._beaten = 0.0
    trainer.log_probs(samples)
    assert (tmp_path / "heartbeat").exists()
    assert server.keys - {""} == {"tml-test"}  # the description of the API needs none


def test_the_name_of_the_base_may_be_in_the_models_folder(
    server: TinkerServer, start: Start, tiny: Path, samples: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text((tiny / "config.json").read_text())
    options = train(server, tinker={"base_url": server.url}).tinker
    with pytest.raises(BadRun, match=r"Set `base_model` in \[train\.tinker\]"):
        start(tinker=options)
    TinkerWeights(base_model="tiny").write(folder)
    check_base(folder)
    trainer = start(tinker=options, base=folder)  # it has no weights
    assert trainer.step(samples, objective(server), **STEP).steps == 1
    trainer.export_adapter(tmp_path / "adapter")
    TinkerWeights(base_model="other").write(folder)
    assert fingerprint(folder) != trainer.base
