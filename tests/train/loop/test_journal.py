from math import isnan
from pathlib import Path

import pytest
from tests.train.loop.journals import record_wave

from ltrain_train.errors import BadJournal
from ltrain_train.loop.journal import (
    Completed,
    Dispatched,
    Evaluated,
    Finished,
    Journal,
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
    return open_journal(home / "runs", "sql", recipe=recipe, updates=updates, current=version)


def test_a_killed_run_continues_with_its_waves(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    record_wave(journal, wave("val", 0))
    record_wave(journal, wave("train", 0, published=1))

    again = opened(tmp_path, current=1, parent=0)
    assert again == journal
    assert (again.run, again.updates) == ("sql", 1)
    assert again.wave("val", 0) is not None
    assert again.wave("val", 1) is None


def test_a_finished_run_is_followed_by_the_next_or_extended(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    record_wave(journal, wave("train", 0, published=1))
    record_wave(journal, wave("train", 1, published=2))
    journal.add(Finished())
    extended = opened(tmp_path, updates=3, current=2, parent=1)
    assert (extended.run, extended.updates, extended.latest) == ("sql", 2, 2)
    assert not extended.finished
    assert opened(tmp_path, updates=2, current=2, parent=1).run == "sql-2"


def test_a_run_does_not_continue_from_a_version_that_is_no_longer_current(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened(tmp_path)
    for number in range(1, 4):
        record_wave(journal, wave("train", number - 1, published=number))
    own = "runs/sql/checkpoints/4"
    killed = opened(tmp_path, updates=9, current=4, parent=3, checkpoint=own)
    assert (killed.run, killed.latest) == ("sql", 3)
    rolled_back = opened(tmp_path, updates=9, current=1, parent=0)
    assert (rolled_back.run, rolled_back.latest) == ("sql-2", 1)
    (tmp_path / "runs" / "sql-2" / "journal.jsonl").unlink()
    (tmp_path / "runs" / "sql-2").rmdir()
    other = opened(tmp_path, current=4, parent=3, checkpoint="runs/sql-once@sql/checkpoints/4")
    assert (other.run, other.latest) == ("sql-2", 4), "another run trained it"
    assert "run 'sql' does not continue from v3, because v1 of 'sql' is current" in caplog.text


def test_a_changed_recipe_starts_another_run_and_names_an_unfinished_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path)
    second = opened(tmp_path, recipe="r2")
    assert second.run == "sql-2"
    sentence = "run 'sql' is unfinished and does not continue, because its recipe has changed; run"
    assert f"{sentence} 'sql-2' starts from v0" in caplog.text
    caplog.clear()
    second.add(Finished())
    assert opened(tmp_path, recipe="r3").run == "sql-3"
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
    again.add(Published(wave=0, version=2))
    assert journal.path.read_bytes().startswith(whole)
    assert opened(tmp_path, current=2, parent=0).latest == 2


def test_open_groups_are_those_of_no_completed_training_wave(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for mode, number in (("val", 0), ("train", 0), ("train", 1)):
        tasks = ("a", "b", f"c{number}")
        journal.add(Dispatched(mode=mode, wave=number, version=0, tasks=tasks))
    journal.add(Completed(mode="val", wave=0, groups=((0, "a"), (0, "b"))))
    journal.add(Completed(mode="train", wave=0, groups=((0, "a"), (0, "c0"))))
    journal.add(Completed(mode="train", wave=1, groups=((0, "b"), (1, "b"))))
    again = opened(tmp_path)
    assert again == journal
    assert again.open_groups() == [(1, "a"), (1, "c1")]
    journal.add(Repeated(mode="train", wave=1, time=7))
    again = opened(tmp_path)
    assert again.open_groups() == [(0, "b"), (1, "a"), (1, "b"), (1, "c1")]
    assert again.repeated == {("train", 1): 7}


def test_a_metric_that_is_no_number_is_kept(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.add(Evaluated(mode="train", wave=0, version=0, rollouts=1, outcomes={}, evaluations={}))
    journal.add(Trained(wave=0, dataset="d", changed=False, metrics={"loss": float("nan")}))
    [trained] = opened(tmp_path).waves
    assert isnan(trained.metrics["loss"])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"event": "gain"}', "Input tag 'gain'"),
        ('{"event": "finished", "color": 1}', "finished.color: Extra inputs"),
        ("7", "Input should be an object"),
        ("{", "Invalid JSON"),
        (
            '{"event": "published", "wave": 3, "version": 1}',
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
    assert journal.latest == 1


@pytest.mark.parametrize("name", ["../../elsewhere", "..", "team/sql"])
def test_a_run_stays_in_its_folder_whatever_its_name(tmp_path: Path, name: str) -> None:
    version = PolicyVersion(policy="sql", version=0, created=0, files={})
    runs = tmp_path / "home" / "runs"
    first, again = (
        open_journal(runs, name, recipe="r1", updates=2, current=version) for _ in range(2)
    )
    assert (first.run, again) == (name, first)
    assert first.path.resolve().parents[1] == runs.resolve()
    assert read_journals(runs, "sql") == [first]
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
