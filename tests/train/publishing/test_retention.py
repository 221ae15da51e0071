"""Which versions of a policy are kept, and the scores by which one is the best."""

from pathlib import Path

import pytest
from tests.train.policy.test_versions import write_model
from tests.train.runs.journals import new_journal, record_wave

from ltrain_train.policy import Policies
from ltrain_train.publishing.retention import (
    VersionScores,
    best_version,
    prune_versions,
    read_scores,
    superfluous_versions,
)
from ltrain_train.runs.journal import Finished, Journal, Wave
from ltrain_train.runs.wave_summary import outcome_score
from ltrain_transforms.policy_file import read_lineage
from ltrain_transforms.recipe import CallReward, EvaluationReward


def add_wave(journal: Journal, mode: str, version: int, score: float | None, **more: int) -> None:
    """Record a wave of one task.

    Args:
        more: `rollouts`, `published`, and the number of rollouts that timed out.
    """
    rollouts, published = more.get("rollouts", 4), more.get("published")
    tasks = {f"t{rollouts}": score} if score is not None else {}
    outcomes = {"timeout": more["timeouts"]} if "timeouts" in more else {}
    record_wave(
        journal,
        Wave(
            policy="sql", mode=mode, wave=len(journal.waves), version=version, rollouts=rollouts,
            outcomes={"ok": rollouts - sum(outcomes.values()), **outcomes}, evaluations={},
            score=score, published=published, tasks=tasks,
        ),
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Eight versions of a policy, trained one from the other by a run that is finished."""
    policies = Policies(tmp_path)
    policies.register("sql", write_model(tmp_path / "model"))
    journal = new_journal(tmp_path / "runs" / "demo")
    for number in range(1, 9):
        checkpoint = journal.of("sql").checkpoints / str(number)
        checkpoint.mkdir(parents=True)
        (checkpoint / "adapter.pt").write_bytes(bytes(1000))
        draft = write_model(tmp_path / f"draft{number}", fill=number)
        policies.register_files(
            "sql", draft, parent=number - 1, dataset=f"d{number}", recipe="r", base=0,
            checkpoint=checkpoint,
        )  # fmt: skip
        add_wave(journal, "train", number - 1, number / 10, published=number)
    for version, score in ((0, 0.2), (3, 0.9)):
        add_wave(journal, "val", version, score)
    add_wave(journal, "val", 8, 0.8, timeouts=1)
    add_wave(journal, "val", 3, 0.3, rollouts=1)
    journal.add(Finished())
    policies.promote("sql", 7)
    return tmp_path


def test_the_best_version_has_the_highest_mean_validation_score(home: Path) -> None:
    scores = read_scores(home / "runs", "sql")
    assert scores[3].validation == pytest.approx(0.78)
    assert scores[3].training == 0.4
    assert scores[7] == VersionScores(None, 0.8)
    assert best_version(scores, range(9)) == 8
    assert best_version(scores, (0, 3, 7)) == 3
    assert best_version({}, (0, 1)) is None
    assert read_scores(home / "runs", "other") == {}


def test_the_current_the_first_the_best_and_the_newest_versions_are_kept(home: Path) -> None:
    policies, runs = Policies(home), home / "runs"
    assert superfluous_versions(policies, "sql", runs, keep=1) == [1, 2, 3, 4, 5, 6]
    removal = prune_versions(policies, "sql", runs, keep=3, in_use={4})
    assert removal.versions == [1, 2, 3, 5]
    assert removal.freed > 4 * 1000
    assert policies.versions("sql") == [0, 4, 6, 7, 8]
    checkpoints = home / "runs" / "demo" / "checkpoints" / "sql"
    assert sorted(each.name for each in checkpoints.iterdir()) == ["4", "6", "7", "8"]
    assert policies.find_checkpoint("sql", 8) == (0, checkpoints / "8")
    assert prune_versions(policies, "sql", runs, keep=3, in_use={4}).freed == 0


def test_a_removed_version_stays_in_the_lineage_of_others(home: Path) -> None:
    policies = Policies(home)
    prune_versions(policies, "sql", home / "runs", keep=1)
    folder = policies.directory / "sql"
    lineage = [getattr(each, "version", None) for each in read_lineage(folder, 8)]
    assert lineage == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert [file.name for file in (folder / "removed" / "v5").iterdir()] == ["policy.json"]


def test_a_removal_that_was_killed_is_completed(home: Path) -> None:
    policies = Policies(home)
    policies.remove("sql", 1)
    assert (policies.directory / "sql" / "removed" / "v1" / "model.safetensors").exists()
    removal = prune_versions(policies, "sql", home / "runs", keep=9)
    assert (removal.versions, removal.freed > 1000) == ([], True)
    assert not (home / "runs" / "demo" / "checkpoints" / "sql" / "1").exists()


def test_versions_that_others_or_an_unfinished_run_need_are_kept(home: Path) -> None:
    policies = Policies(home)
    draft = write_model(home / "draft", fill=9)
    checkpoint = home / "runs" / "next" / "checkpoints" / "sql" / "9"
    policies.register_files(
        "sql", draft, parent=2, dataset="d", recipe="r", base=5, checkpoint=checkpoint
    )
    policies.promote("sql", 9)
    new_journal(home / "runs" / "next", "next", base=2)
    (home / "runs" / "broken").mkdir()
    (home / "runs" / "broken" / "journal.jsonl").write_text('{"event": "started"}\n')
    kept = {0, 2, 5, 8, 9}
    removed = superfluous_versions(policies, "sql", home / "runs", keep=1)
    assert {*policies.versions("sql")} - {*removed} == kept


def test_a_score_is_the_weighted_sum_of_the_rewarded_evaluations() -> None:
    rewards = (
        EvaluationReward(name="answer", evaluation="reward", weight=2.0),
        EvaluationReward(name="style", evaluation="tidy", weight=-0.5),
        CallReward(name="rule", on="tool", value="-1"),
    )
    assert outcome_score(rewards, {"reward": 0.5, "tidy": 1.0, "other": 9.0}) == 0.5
    assert outcome_score(rewards, {"reward": 0.5}) == 1.0
    assert outcome_score(rewards, {"other": 9.0}) is None
