from pathlib import Path

from ltrain_train.loop.journal import Journal, Wave, open_journal


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


def opened(runs: Path, recipe: str = "r1") -> Journal:
    return open_journal(runs, "sql", recipe=recipe, policy="sql", base=0)


def test_a_killed_run_continues_with_its_waves(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.add(wave("val", 0))
    journal.add(wave("train", 0, published=1))

    again = opened(tmp_path)
    assert again == journal
    assert (again.run, again.updates) == ("sql", 1)
    assert again.wave("val", 0) is not None
    assert again.wave("val", 1) is None


def test_a_finished_run_is_followed_by_the_next(tmp_path: Path) -> None:
    opened(tmp_path).finish()
    assert opened(tmp_path).run == "sql-2"


def test_a_changed_recipe_starts_another_run(tmp_path: Path) -> None:
    opened(tmp_path)
    assert opened(tmp_path, recipe="r2").run == "sql-2"


def test_a_name_taken_by_another_command_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    assert opened(tmp_path).run == "sql-2"


def test_an_interrupted_write_leaves_the_previous_journal(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    part = journal.path.with_name(".journal.json.999999999-0badcafe.part")
    part.write_text("{")
    assert opened(tmp_path) == journal
    journal.save()
    assert not part.exists()


def test_only_the_latest_checkpoint_is_kept(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for number in (1, 2):
        (journal.checkpoints / str(number)).mkdir(parents=True)
        journal.add(wave("train", number - 1, published=number))
        journal.prune()
    assert [path.name for path in journal.checkpoints.iterdir()] == ["2"]


def test_a_wave_without_rows_is_an_update_without_a_version(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.add(wave("train", 0, published=1))
    journal.add(wave("train", 1))
    assert journal.updates == 2
    assert journal.latest == 1
