"""Curves of a run, read back with the libraries that people read them with."""

import time
from pathlib import Path
from typing import Any

import pytest
from tests.train.runs.journals import new_journal

from ltrain_train.errors import BadRun
from ltrain_train.loop.trackers import TRACKERS, open_trackers
from ltrain_train.runs.journal import Wave
from ltrain_transforms.recipe import TRACKER_NAMES


def wave(number: int, **more: object) -> Wave:
    fields: dict[str, Any] = {
        "mode": "train",
        "outcomes": {"ok": 3, "error": 1},
        "rollouts": 4,
        "tokens": 90,
    }
    fields |= {"evaluations": {"reward": 0.25 * number}, "seconds": {"train": 2.0}}
    fields |= {"metrics": {"loss": 0.5, "kl": float("nan")}, **more}
    return Wave(policy="sql", wave=number, version=number, **fields)


def test_tensorboard_shows_every_number_of_a_wave(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    journal, sentences = new_journal(tmp_path / "run"), list[str]()
    for numbers in ((0, 1), (2,)):  # the second time the run goes on
        with open_trackers(["tensorboard"], journal, sentences.append) as record:
            for number in numbers:
                record(wave(number, score=0.25 * number))
            record(wave(numbers[-1], mode="test", score=1.0))
    assert sentences == [f"Curves: tensorboard, {journal.folder / 'tensorboard'}."] * 2
    curves = EventAccumulator(str(journal.folder / "tensorboard"))
    curves.Reload()
    tags = curves.Tags()["tensors"]
    assert {"train/score", "train/score/reward", "train/loss", "train/seconds/train"} <= set(tags)
    assert "train/kl" not in tags
    assert [each.step for each in curves.Tensors("test/score")] == [1, 2]
    points = [
        (each.step, each.tensor_proto.float_val[0]) for each in curves.Tensors("train/score/reward")
    ]
    assert points == [(0, 0.0), (1, 0.25), (2, 0.5)]
    [speed, *_] = curves.Tensors("train/tokens_per_second")
    assert speed.tensor_proto.float_val[0] == 45.0


def test_wandb_records_a_run_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    journal, sentences = new_journal(tmp_path / "run"), list[str]()
    with open_trackers(["wandb"], journal, sentences.append) as record:
        record(wave(0))
        record(wave(1))
    [file] = (journal.folder / "wandb").glob("offline-run-*/*.wandb")
    assert not caplog.records
    wait_for_content(file, b"train/score/reward", b"train/loss")
    assert str(file.parent) in sentences[0]


def test_mlflow_records_every_number_of_a_wave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    place = f"file:{tmp_path / 'mlflow'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    journal, sentences = new_journal(tmp_path / "run"), list[str]()
    for numbers in ((0, 1), (2,)):  # the second time the run goes on, as another run of MLflow
        with open_trackers(["mlflow"], journal, sentences.append) as record:
            for number in numbers:
                record(wave(number))
    assert sentences == [f"Curves: mlflow, {place}."] * 2
    assert not caplog.records
    client = MlflowClient(place)
    experiment = client.get_experiment_by_name("sql")
    assert experiment is not None
    second, first = client.search_runs([experiment.experiment_id], order_by=["start_time DESC"])
    assert (first.info.run_name, first.info.status) == ("demo", "FINISHED")
    points = [
        (point.step, point.value)
        for run in (first, second)
        for point in client.get_metric_history(run.info.run_id, "train/score/reward")
    ]
    assert points == [(0, 0.0), (1, 0.25), (2, 0.5)]


def test_a_library_that_cannot_begin_ends_the_run_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://server")
    message = "train.trackers names 'mlflow', and this library cannot begin: .*nowhere"
    with (
        pytest.raises(BadRun, match=message),
        open_trackers(["mlflow"], new_journal(tmp_path / "run"), print),
    ):
        pass


def wait_for_content(file: Path, *expected: bytes, seconds: float = 60) -> None:
    """Wait until a file has these bytes: a process of W&B writes it, at times after `finish()`."""
    deadline = time.monotonic() + seconds
    while missing := [each for each in expected if each not in file.read_bytes()]:
        assert time.monotonic() < deadline, f"{file} has no {missing}."
        time.sleep(0.1)


def test_a_tracker_that_fails_does_not_end_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        place = "nowhere"

        def __init__(self, journal: object) -> None: ...

        def log(self, values: object, step: int) -> None:
            raise OSError("no space left")

        close = log

    monkeypatch.setitem(TRACKERS, "tensorboard", Broken)
    with open_trackers(["tensorboard"], new_journal(tmp_path / "run"), print) as record:
        record(wave(0))
    assert "ltrain: tensorboard did not record a wave: no space left" in caplog.text


def test_a_library_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ltrain_train.loop.trackers.find_spec", lambda name: None)
    with (
        pytest.raises(BadRun, match="names 'wandb', and this library is not installed"),
        open_trackers(["wandb"], new_journal(tmp_path / "run"), print),
    ):
        pass


def test_the_recipe_and_the_loop_name_the_same_trackers() -> None:
    assert tuple(TRACKERS) == TRACKER_NAMES
