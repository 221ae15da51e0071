"""Validations and tests of a run: which versions they score, and what they have in common."""

import tomllib
from pathlib import Path

import pytest
from tests.otlp import insert_otlp, open_empty_store
from tests.train.loop.test_online import ONE, ROLLOUT, add_policy, start_run, train_wave
from tests.train.loop.test_stopping import Serving
from tests.train.runs.journals import new_journal
from tests.transforms.conftest import RECIPE, Scene

from ltrain_instrument.identity import Mode
from ltrain_train.policy import Policies
from ltrain_train.publishing.retention import read_scores
from ltrain_train.rollout import BadTasks, Task
from ltrain_train.runs.held_out import count_leaks, load_held_out
from ltrain_train.runs.journal import Finished, Journal, Served, Wave, open_journal
from ltrain_train.runs.report import test_scores as report_test_scores
from ltrain_train.updates.update import Update
from ltrain_transforms.recipe import Recipe, Rollout

SECTION = Rollout.model_validate(ROLLOUT)
TEST = [Task(id="a", input="y"), Task(id="b", input="z")]


class Counting(Serving):
    """A fake updater whose versions count up."""

    def update(self, *arguments: object) -> Update:
        self.version = len(self.numbers) + 1
        return super().update(*arguments)  # type: ignore[arg-type]


def add_versions(home: Path, count: int) -> None:
    first = add_policy(home)
    for version in range(1, count + 1):
        folder = home / "policies" / "sql" / f"v{version}"
        folder.mkdir()
        fields = {"version": version, "parent": version - 1}
        (folder / "policy.json").write_text(first.model_copy(update=fields).model_dump_json())


def held_out(scene: Scene, mode: Mode, wave: int, **scores: float) -> None:
    """Add a rollout of each task of a held-out wave."""
    for task, score in scores.items():
        rollout = scene.attempt(task, mode=mode, wave=wave)
        rollout.dispatch()
        rollout.evaluate(score)
        rollout.close()


def whole_run(updates: int) -> Scene:
    """Return the rollouts of a run whose best version is the first that it trained."""
    scene = Scene()
    for wave in range(updates):
        train_wave(scene, wave)
    for wave, score in ((0, 0.0), (1, 1.0), (2, 0.5)):
        held_out(scene, "val", wave, t1=score)
    held_out(scene, "test", 0, a=0.0, b=0.5)
    held_out(scene, "test", updates, a=1.0, b=0.75)
    return scene


def places(waves: list[Wave]) -> list[tuple[str, int, int]]:
    return [(wave.mode, wave.wave, wave.version) for wave in waves]


def online_recipe(**train: object) -> Recipe:
    section = {"updates": 2, "validate_every": 1, "span_timeout": 0, **train}
    return Recipe.model_validate(tomllib.loads(RECIPE) | {"rollout": ROLLOUT, "train": section})


def test_a_run_tests_its_first_and_its_served_version_and_goes_on_after_a_kill(
    tmp_path: Path,
) -> None:
    recipe, journal = online_recipe(serve="best"), new_journal(tmp_path / "runs" / "demo")
    add_versions(tmp_path, 2)
    learning = Counting(tmp_path)
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, whole_run(updates=2).request())
        online, _, shown = start_run(
            tmp_path, store, recipe, journal, learning, validation=ONE, test=TEST
        )
        online.run()
        assert places(shown) == [
            ("val", 0, 0),
            ("test", 0, 0),
            ("train", 0, 0),
            ("val", 1, 1),
            ("train", 1, 1),
            ("val", 2, 2),
            ("test", 2, 1),
        ]
        assert learning.served == 1 and isinstance(journal.events[-1], Finished)
        # killed in the last test: the best version is current, and not the latest one
        kinds = [event.event for event in journal.events]
        assert kinds[-5:] == ["served", "dispatched", "completed", "evaluated", "finished"]
        lines = journal.path.read_bytes().splitlines(keepends=True)
        journal.path.write_bytes(b"".join(lines[:-3]))
        best = Policies(tmp_path).read_version("sql", 1)
        killed = open_journal(tmp_path / "runs", "demo", recipe="r", updates=2, current=[best])
        assert (killed.run, killed.of("sql").latest, killed.of("sql").served) == ("demo", 2, 1)
        again, others, rest = start_run(
            tmp_path, store, recipe, killed, learning, validation=ONE, test=TEST
        )
        again.run()
    assert places(rest) == [("test", 2, 1)]
    assert others.waves == [["a", "b"]] and len(others.finished[0]) == 2
    assert sum(isinstance(event, Served) for event in killed.events) == 1
    assert list(report_test_scores(killed)) == [
        "Test tasks: 0.250 [0.000, 0.500] with v0, then 0.875 [0.750, 1.000] with v1; the "
        "difference is +0.625 [0.250, 1.000]; intervals are of 95 %, over tasks."
    ]
    scores = read_scores(tmp_path / "runs", "sql")
    assert {version: each.validation for version, each in scores.items()} == {
        0: 0.0,
        1: 1.0,
        2: 0.5,
    }


def test_a_run_that_serves_its_first_version_tests_it_once(tmp_path: Path) -> None:
    recipe, journal = online_recipe(updates=1, max_minutes=1e-9), new_journal(tmp_path / "run")
    add_policy(tmp_path)
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, whole_run(updates=1).request())
        online, _, shown = start_run(tmp_path, store, recipe, journal, Serving(tmp_path), test=TEST)
        online.run()
    assert places(shown) == [("test", 0, 0)]
    assert list(report_test_scores(journal)) == [
        "Test tasks: 0.250 [0.000, 0.500] with v0; the version did not change."
    ]


def test_a_finished_run_does_not_go_on_from_the_version_that_it_served(tmp_path: Path) -> None:
    add_versions(tmp_path, 2)
    journal = new_journal(tmp_path / "runs" / "demo")
    journal.add(Served(policy="sql", version=1))
    first = Policies(tmp_path).read_version("sql", 1)
    assert Journal.load(journal.folder) == journal and journal.of("sql").leads_to(first)
    journal.add(Finished())
    assert not journal.of("sql").leads_to(first)


@pytest.mark.parametrize(
    ("other", "leaks"),
    [
        ({"id": "1", "input": "x", "gold": 2}, 1),
        ({"id": "2", "input": "x", "gold": 1}, 1),
        ({"id": "1", "input": "y", "gold": 1}, 0),
        ({"id": "2", "input": "x", "gold": 2}, 0),
    ],
)
def test_a_task_leaks_with_its_id_and_input_or_with_all_but_its_id(
    other: dict[str, object], leaks: int
) -> None:
    held_out = [Task.model_validate(each) for each in ({"id": "1", "input": "x", "gold": 1},)]
    assert count_leaks(held_out, [Task.model_validate(other)]) == leaks


def test_tasks_that_are_held_out_and_used_otherwise_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [task.model_dump_json() + "\n" for task in (*ONE, *TEST)]
    (tmp_path / "val.jsonl").write_text("".join(lines[:2]))
    (tmp_path / "test.jsonl").write_text("".join(lines))
    files = {"validation": "val.jsonl", "test": "test.jsonl"}
    tasks = load_held_out(tmp_path, SECTION.model_copy(update=files), ONE)
    assert {mode: [task.id for task in each] for mode, each in tasks.items()} == {
        "val": ["t1", "a"],
        "test": ["t1", "a", "b"],
    }
    found = [record.getMessage().partition(". ")[0] for record in caplog.records]
    assert found == [
        "ltrain: 1 of the 2 tasks in rollout.validation are also in rollout.tasks",
        "ltrain: 1 of the 3 tasks in rollout.test are also in rollout.tasks",
        "ltrain: 2 of the 3 tasks in rollout.test are also in rollout.validation",
    ]
    with pytest.raises(BadTasks, match=r"Cannot read tasks from .*none\.jsonl"):
        load_held_out(tmp_path, SECTION.model_copy(update={"test": "none.jsonl"}), ONE)


def test_a_run_without_tests_reports_none(tmp_path: Path) -> None:
    assert load_held_out(tmp_path, SECTION, ONE) == {"val": [], "test": []}
    assert list(report_test_scores(new_journal(tmp_path / "run"))) == []
