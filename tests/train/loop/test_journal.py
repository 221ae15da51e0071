import json
from pathlib import Path

import pytest

from ltrain_train.errors import BadJournal
from ltrain_train.loop.journal import Journal, Wave, open_journal, read_journals
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
    journal.add(wave("val", 0))
    journal.add(wave("train", 0, published=1))

    again = opened(tmp_path, current=1, parent=0)
    assert again == journal
    assert (again.run, again.updates) == ("sql", 1)
    assert again.wave("val", 0) is not None
    assert again.wave("val", 1) is None


def test_a_finished_run_is_followed_by_the_next_or_extended(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.add(wave("train", 0, published=1))
    journal.add(wave("train", 1, published=2))
    journal.finish()
    extended = opened(tmp_path, updates=3, current=2, parent=1)
    assert (extended.run, extended.updates, extended.latest) == ("sql", 2, 2)
    assert not extended.finished
    assert opened(tmp_path, updates=2, current=2, parent=1).run == "sql-2"


def test_a_run_does_not_continue_from_a_version_that_is_no_longer_current(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened(tmp_path)
    for number in range(1, 4):
        journal.add(wave("train", number - 1, published=number))
    own = "runs/sql/checkpoints/4"
    killed = opened(tmp_path, updates=9, current=4, parent=3, checkpoint=own)
    assert (killed.run, killed.latest) == ("sql", 3)
    rolled_back = opened(tmp_path, updates=9, current=1, parent=0)
    assert (rolled_back.run, rolled_back.latest) == ("sql-2", 1)
    (tmp_path / "runs" / "sql-2" / "journal.json").unlink()
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
    second.finish()
    assert opened(tmp_path, recipe="r3").run == "sql-3"
    assert not caplog.text


def test_a_name_taken_by_another_command_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "runs" / "sql").mkdir(parents=True)
    assert opened(tmp_path).run == "sql-2"


def test_an_interrupted_write_leaves_the_previous_journal(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    part = journal.path.with_name(".journal.json.999999999-0badcafe.part")
    part.write_text("{")
    assert opened(tmp_path) == journal
    journal.save()
    assert not part.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"waves": [{"mode": "train", "gain": 1}]}, "TypeError: .*'gain'"),
        ({"waves": [7]}, "TypeError"),
        ({"waves": None}, "TypeError"),
        ({"color": "red"}, "TypeError: .*'color'"),
    ],
)
def test_a_journal_of_another_ltrain_version_is_named_and_does_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, object], reason: str
) -> None:
    journal = opened(tmp_path)
    journal.path.write_text(json.dumps(json.loads(journal.path.read_text()) | change))
    with pytest.raises(BadJournal, match=rf"'{journal.path}' cannot be read \({reason}"):
        opened(tmp_path)
    assert read_journals(tmp_path / "runs", "sql") == []
    assert caplog.messages[0].startswith("ltrain: run 'sql' is skipped. The journal '")
    journal.path.rename(journal.path.with_suffix(".old"))
    assert opened(tmp_path).run == "sql-2"


@pytest.mark.parametrize("text", ["{", "[]", '"a"', "{}"])
def test_a_damaged_journal_is_named(tmp_path: Path, text: str) -> None:
    journal = opened(tmp_path)
    journal.path.write_text(text)
    with pytest.raises(BadJournal, match=r"journal\.json' cannot be read"):
        opened(tmp_path)


def test_a_wave_without_rows_is_an_update_without_a_version(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.add(wave("train", 0, published=1))
    journal.add(wave("train", 1))
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
