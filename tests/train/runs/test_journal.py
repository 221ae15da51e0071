from math import isnan
from pathlib import Path
from typing import Any

import pytest
from tests.train.runs.ends import ended
from tests.train.runs.journals import record_wave

from ltrain_train.errors import BadJournal
from ltrain_train.runs.journal import (
    Completed,
    Dispatched,
    Evaluated,
    Finished,
    Journal,
    PolicyScore,
    Published,
    Repeated,
    Trained,
    Wave,
    open_journal,
    read_journals,
)
from ltrain_transforms.policy_file import PolicyVersion


def wave(mode: str, number: int, published: int | None = None) -> Wave:
    return Wave(
        policy="sql",
        mode=mode,
        wave=number,
        version=0,
        rollouts=96,
        outcomes={"ok": 96},
        evaluations={"reward": 0.5},
        published=published,
    )


def opened(
    home: Path,
    recipe: str = "r1",
    *,
    updates: int = 2,
    current: int = 0,
    parent: int | None = None,
    checkpoint: str | None = None,
) -> Journal:
    version = PolicyVersion(
        policy="sql", version=current, parent=parent, checkpoint=checkpoint, created=0, files={}
    )
    return open_journal(home / "runs", "sql", recipe=recipe, updates=updates, current=[version])


def test_a_killed_run_continues_with_its_waves(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    record_wave(journal, wave("val", 0))
    record_wave(journal, wave("train", 0, published=1))

    again = opened(tmp_path, current=1, parent=0)
    assert again == journal
    assert (again.run, again.updates) == ("sql", 1)
    assert again.of("sql").wave("val", 0) is not None
    assert again.of("sql").wave("val", 1) is None


def test_a_finished_run_is_followed_by_the_next_or_extended(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    record_wave(journal, wave("train", 0, published=1))
    record_wave(journal, wave("train", 1, published=2))
    journal.add(Finished())
    extended = opened(tmp_path, updates=3, current=2, parent=1)
    assert (extended.run, extended.updates, extended.latest) == ("sql", 2, {"sql": 2})
    assert not extended.finished
    assert opened(tmp_path, updates=2, current=2, parent=1).run == "sql-2"


def test_a_run_does_not_continue_from_a_version_that_is_no_longer_current(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened(tmp_path)
    for number in range(1, 4):
        record_wave(journal, wave("train", number - 1, published=number))
    own = "runs/sql/checkpoints/sql/4"
    killed = opened(tmp_path, updates=9, current=4, parent=3, checkpoint=own)
    assert (killed.run, killed.latest) == ("sql", {"sql": 3})
    rolled_back = opened(tmp_path, updates=9, current=1, parent=0)
    assert (rolled_back.run, rolled_back.latest) == ("sql-2", {"sql": 1})
    (tmp_path / "runs" / "sql-2" / "journal.jsonl").unlink()
    (tmp_path / "runs" / "sql-2").rmdir()
    other = opened(tmp_path, current=4, parent=3, checkpoint="runs/sql-once@sql/checkpoints/4")
    assert (other.run, other.latest) == ("sql-2", {"sql": 4}), "another run trained it"
    assert "run 'sql' does not continue from v3, because v1 of 'sql' is current" in caplog.text


def dispatch(journal: Journal) -> None:
    journal.add(Dispatched(mode="val", wave=0, tasks=("a",)))


def test_a_changed_recipe_starts_another_run_and_names_an_unfinished_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dispatch(opened(tmp_path))
    second = opened(tmp_path, recipe="r2")
    assert second.run == "sql-2"
    sentence = "run 'sql' is unfinished and does not continue, because its recipe has changed; run"
    assert f"{sentence} 'sql-2' starts from v0" in caplog.text
    caplog.clear()
    second.add(Finished())
    assert opened(tmp_path, recipe="r3").run == "sql-3"
    assert not caplog.text


def test_a_run_without_a_wave_keeps_its_name_when_its_recipe_is_corrected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="wrong"), opened(tmp_path).working(2):
        raise ValueError("wrong")
    second = opened(tmp_path, recipe="r2", current=1)
    assert (second.run, second.recipe, second.latest) == ("sql", "r2", {"sql": 1})
    assert opened(tmp_path, recipe="r2", current=1) == second
    assert opened(tmp_path, recipe="r2").latest == {"sql": 0}, "another version is current"
    assert not caplog.text


def test_a_name_taken_by_another_command_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "runs" / "sql").mkdir(parents=True)
    assert opened(tmp_path).run == "sql-2"


def test_a_line_that_a_kill_cut_off_is_no_event(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    record_wave(journal, wave("val", 0))
    whole = journal.path.read_bytes()
    record_wave(journal, wave("train", 0, published=1))
    cut = journal.path.read_bytes()[:-9]
    journal.path.write_bytes(cut)
    again = opened(tmp_path)
    assert [each.event for each in again.events] == ["evaluated", "evaluated", "trained"]
    assert (again.updates, [each.mode for each in again.waves]) == (0, ["val"])
    assert journal.path.read_bytes() == cut, "another process may read the journal of a live run"
    again.add(Published(policy="sql", wave=0, version=2))
    assert journal.path.read_bytes().startswith(whole)
    assert opened(tmp_path, current=2, parent=0).latest == {"sql": 2}


def test_open_groups_are_those_of_no_completed_training_wave(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for mode, number in (("val", 0), ("train", 0), ("train", 1)):
        tasks = ("a", "b", f"c{number}")
        journal.add(Dispatched(mode=mode, wave=number, tasks=tasks))
    journal.add(Completed(mode="val", wave=0, rollouts=(ended("a"), ended("b"))))
    journal.add(Completed(mode="train", wave=0, rollouts=(ended("a", reward=0.5), ended("c0"))))
    journal.add(Completed(mode="train", wave=1, rollouts=(ended("b"), ended("b", wave=1))))
    again = opened(tmp_path)
    assert again == journal
    assert again.open_groups() == [(1, "a"), (1, "c1")]
    journal.add(Repeated(mode="train", wave=1, attempts={"1b": 7}))
    again = opened(tmp_path)
    assert again.open_groups() == [(0, "b"), (1, "a"), (1, "b"), (1, "c1")]
    assert again.repeated == {("train", 1): {"1b": 7}}


def test_a_metric_that_is_no_number_is_kept(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    record_wave(journal, wave("train", 0, published=1))
    nan = {"loss": float("nan")}
    journal.add(Trained(policy="sql", wave=0, dataset="d", changed=False, metrics=nan))
    [_, trained] = opened(tmp_path, current=1, parent=0).waves
    assert isnan(trained.metrics["loss"])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"event": "gain"}', "Input tag 'gain'"),
        ('{"event": "finished", "color": 1}', "finished.color: Extra inputs"),
        ("7", "Input should be an object"),
        ("{", "Invalid JSON"),
        (
            '{"event": "published", "policy": "sql", "wave": 3, "version": 1}',
            "wave 3 is published before it is trained",
        ),
    ],
)
def test_a_journal_of_another_ltrain_version_is_named_and_does_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str, reason: str
) -> None:
    journal = opened(tmp_path)
    with journal.path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(BadJournal, match=rf"'{journal.path}' cannot be read \(.*{reason}"):
        opened(tmp_path)
    assert read_journals(tmp_path / "runs", "sql") == []
    assert caplog.messages[0].startswith("ltrain: run 'sql' is skipped. The journal '")
    journal.path.rename(journal.path.with_suffix(".old"))
    assert opened(tmp_path).run == "sql-2"


@pytest.mark.parametrize("text", ["", "{", "[]\n", '{"event": "finished"}\n'])
def test_a_damaged_journal_is_named(tmp_path: Path, text: str) -> None:
    journal = opened(tmp_path)
    journal.path.write_text(text)
    with pytest.raises(BadJournal, match=r"journal\.jsonl' cannot be read"):
        opened(tmp_path)


def test_a_wave_without_rows_is_an_update_without_a_version(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    record_wave(journal, wave("train", 0, published=1))
    record_wave(journal, wave("train", 1))
    assert journal.updates == 2
    assert journal.latest == {"sql": 1}


def test_each_policy_of_a_run_has_its_own_waves_and_versions(tmp_path: Path) -> None:
    current = [
        PolicyVersion(policy=name, version=version, created=0, files={})
        for name, version in (("writer", 0), ("critic", 3))
    ]
    journal = open_journal(tmp_path / "runs", "both", recipe="r", updates=1, current=current)
    scores = {
        "writer": PolicyScore(version=0, score=1.0, tasks={"a": 1.0}),
        "critic": PolicyScore(version=3, score=-1.0),
    }
    fields: dict[str, Any] = {"rollouts": 4, "outcomes": {"ok": 4}, "evaluations": {}}
    for mode in ("val", "train"):
        journal.add(
            Evaluated(mode=mode, wave=0, policies=scores, seconds={"generate": 2.0}, **fields)
        )
    journal.add(Trained(policy="writer", wave=0, dataset="d", changed=True, seconds={"train": 1.0}))
    journal.add(Published(policy="writer", wave=0, version=1))
    assert (journal.updates, journal.latest) == (0, {"writer": 1, "critic": 3})
    again = open_journal(
        tmp_path / "runs", "both", recipe="r", updates=1,
        current=[PolicyVersion(policy="writer", version=1, created=0, files={}), current[1]],
    )  # fmt: skip
    assert again == journal, "it goes on with the update of the second policy"
    journal.add(Trained(policy="critic", wave=0, dataset="e", changed=False))
    assert journal.updates == 1
    [validated, trained] = journal.of("critic").waves
    assert (validated.score, trained.score, trained.version, trained.published) == (-1, -1, 3, None)
    assert [wave.seconds for wave in journal.waves_of("train", 0)] == [
        {"generate": 2.0, "train": 1.0},
        {},
    ]
    [of_critic] = read_journals(tmp_path / "runs", "critic")
    assert of_critic.latest == 3
    other = [current[1]]
    assert open_journal(tmp_path / "runs", "both", recipe="r", updates=9, current=other).run == (
        "both-2"
    )


@pytest.mark.parametrize("name", ["../../elsewhere", "..", "team/sql"])
def test_a_run_stays_in_its_folder_whatever_its_name(tmp_path: Path, name: str) -> None:
    version = PolicyVersion(policy="sql", version=0, created=0, files={})
    runs = tmp_path / "home" / "runs"
    first, again = (
        open_journal(runs, name, recipe="r1", updates=2, current=[version]) for _ in range(2)
    )
    assert (first.run, again) == (name, first)
    assert first.path.resolve().parents[1] == runs.resolve()
    assert read_journals(runs, "sql") == [first.of("sql")]
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
