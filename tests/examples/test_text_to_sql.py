"""The text-to-SQL example without ltrain: database, questions, reward and recipe."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from ltrain_train.rollout import load_tasks
from ltrain_transforms.recipe import Recipe

Import = Callable[[str], ModuleType]


def test_the_task_files_match_the_templates(module: Import, folder: Path) -> None:
    made = module("tasks").questions()
    for name, rows in zip(("train", "val"), made, strict=True):
        on_disk = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        expected = [{"id": r.id, "input": r.input, "kind": r.kind, "gold": r.gold} for r in rows]
        assert on_disk == expected
    assert len(load_tasks(folder / "train.jsonl")) >= 60
    assert len(load_tasks(folder / "val.jsonl")) >= 96


def test_no_slot_value_of_validation_is_in_training(module: Import) -> None:
    tasks = module("tasks")
    for slot, values in tasks.SLOTS.items():
        train, val = tasks.split(slot)
        assert (len(train), len(val)) == (6, 8)
        assert set(train) | set(val) <= set(values)
        assert set(train) & set(val) == set()
    train, val = tasks.questions()
    assert {row.gold for row in train} & {row.gold for row in val} == set()


def test_every_gold_query_has_an_answer(module: Import) -> None:
    database = module("database").Database()
    train, val = module("tasks").questions()
    for row in [*train, *val]:
        assert database.rows(row.gold) not in ([], [[0]], [[None]]), row.id


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT nope FROM singer", "no such column: nope"),
        ("DROP TABLE singer", "not a SELECT statement"),
        ("WITH x AS (SELECT 1) DELETE FROM singer", "attempt to write a readonly database"),
        ("SELECT count(*) FROM singer a, singer b, singer c, singer d", "interrupted"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT '\0", "null character"),
    ],
)
def test_an_invalid_query_fails_with_sqlites_message(module: Import, sql: str, says: str) -> None:
    database = module("database")
    with pytest.raises(database.QueryFailed, match=says):
        database.Database().rows(sql)


def test_many_threads_share_the_database(module: Import) -> None:
    database = module("database").Database()
    with ThreadPoolExecutor(8) as threads:
        counts = threads.map(lambda _: database.rows("SELECT count(*) FROM concert"), range(200))
    assert {count[0][0] for count in counts} == {168}


@pytest.mark.parametrize(
    ("rows", "score"),
    [
        ([["Ana", 1], ["Ben", 2]], 1.0),
        ([["Ben", 2], ["Ana", 1]], 1.0),
        ([["Ana", 1], ["Ben", 2], ["Ben", 2]], 0.0),
        ([["Ana", "1"], ["Ben", 2]], 0.0),
        ([], 0.0),
    ],
)
def test_rows_count_as_a_multiset(module: Import, rows: list[list[object]], score: float) -> None:
    gold = "SELECT 'Ana', 1 UNION ALL SELECT 'Ben', 2"
    result = {"sql": "", "rows": rows, "error": None, "executed": True}
    expected = {"reward": score, "executed": 1.0}
    assert module("reward").score({"gold": gold}, result) == expected


def test_a_query_that_did_not_run_scores_nothing(module: Import) -> None:
    failed = {"sql": "x", "rows": None, "error": "no", "executed": False}
    expected = {"reward": 0.0, "executed": 0.0}
    assert module("reward").score({"gold": "SELECT 1"}, failed) == expected


@pytest.mark.parametrize(
    ("answer", "sql"),
    [
        ("SELECT 1;", "SELECT 1"),
        ("```sql\nSELECT 1;\n```\nas you asked", "SELECT 1"),
        ("Here:\n```\nSELECT 2", "SELECT 2"),
        ("", ""),
    ],
)
def test_the_query_is_extracted_from_the_answer(module: Import, answer: str, sql: str) -> None:
    assert module("agent").extract_sql(answer) == sql


def test_the_recipe_is_valid(folder: Path) -> None:
    recipe = Recipe.load(folder / "ltrain.toml")
    assert recipe.rollout is not None
    assert recipe.policy[0].agents == ("write_query", "rewrite_query")
    assert (folder / recipe.rollout.tasks).exists()
