"""The text-to-SQL example: generated databases, Spider's format, reward, recipes and its agents.

The model is a server of the tests that answers by the last message.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from tests.frameworks.expected import describe_calls
from tests.frameworks.model import Model

from ltrain_collector.store import Store
from ltrain_train.rollout import load_tasks
from ltrain_transforms.datasets import build
from ltrain_transforms.recipe import Recipe

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

Import = Callable[[str], ModuleType]
PETS = "data/database/pets/pets.sqlite"
SCHEMA = {
    "db_id": "pets",
    "table_names_original": ["Pet"],
    "column_names_original": [[-1, "*"], [0, "Name"], [0, "Weight"]],
}
ENTRY = {"db_id": "pets", "question": "How many pets?", "query": "SELECT count(*) FROM Pet"}


def tables_of(database: Path) -> list[str]:
    """Return the statements that make a database; its bytes depend on SQLite's version."""
    connection = sqlite3.connect(database)
    statements = list(connection.iterdump())
    connection.close()
    return statements


@pytest.fixture
def spider(tmp_path: Path) -> Path:
    """A folder in Spider's layout, with further fields that its files have."""
    folder = tmp_path / "spider"
    (folder / "database" / "pets").mkdir(parents=True)
    connection = sqlite3.connect(folder / "database" / "pets" / "pets.sqlite")
    connection.executescript("CREATE TABLE Pet (Name, Weight); INSERT INTO Pet VALUES ('Rex', 9)")
    connection.close()
    join = "SELECT Name FROM Pet WHERE Weight = (SELECT max(Weight) FROM Pet)"
    order = "SELECT Name FROM Pet ORDER BY Weight"
    train = [ENTRY | {"query_toks": ["SELECT"], "sql": {}}, ENTRY | {"query": join}]
    write_json(folder / "tables.json", [SCHEMA | {"primary_keys": []}])
    write_json(folder / "train_spider.json", train)
    write_json(folder / "dev.json", [ENTRY | {"query": order}])
    return folder


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def test_the_committed_files_are_those_of_seed_0(
    module: Import, folder: Path, tmp_path: Path
) -> None:
    module("tasks").main(["--out", str(tmp_path)])
    for name in ("train.jsonl", "val.jsonl"):
        made = (tmp_path / name).read_text().replace(f"{tmp_path}/data", "data")
        assert made == (folder / name).read_text()
    for path in sorted((tmp_path / "data").rglob("*.json")):
        assert path.read_text() == (folder / "data" / path.name).read_text()
    databases = sorted((tmp_path / "data").rglob("*.sqlite"))
    assert len(databases) == 8
    for path in databases:
        assert tables_of(path) == tables_of(folder / path.relative_to(tmp_path))


def test_another_seed_makes_other_rows_and_questions(
    module: Import, folder: Path, tmp_path: Path
) -> None:
    module("generator").write(tmp_path, 1)
    assert (tmp_path / "tables.json").read_text() == (folder / "data/tables.json").read_text()
    assert (tmp_path / "dev.json").read_text() != (folder / "data/dev.json").read_text()
    pets = "database/pets/pets.sqlite"
    assert tables_of(tmp_path / pets) != tables_of(folder / "data" / pets)


def test_training_and_validation_are_on_different_databases(folder: Path) -> None:
    train, val = ([*load_tasks(folder / f"{name}.jsonl")] for name in ("train", "val"))
    databases = [{task.further_fields["db_id"] for task in tasks} for tasks in (train, val)]
    assert (len(databases[0]), len(databases[1]), databases[0] & databases[1]) == (4, 4, set())
    for tasks in (train, val):
        assert len(tasks) == 192
        domains = Counter(task.domain for task in tasks)
        assert domains == {"simple": 160, "order": 16, "join": 16}
        assert len({task.further_fields["query"] for task in tasks}) == 192


def test_every_gold_query_has_rows(module: Import, folder: Path) -> None:
    database = module("database")
    for task in [*load_tasks(folder / "train.jsonl"), *load_tasks(folder / "val.jsonl")]:
        fields = task.further_fields
        rows = database.open_database(fields["database"]).rows(fields["query"])
        assert rows not in ([], [[0]], [[None]]), task.id


def test_the_schemas_are_whole_in_spiders_words(folder: Path) -> None:
    pets = json.loads((folder / "data" / "tables.json").read_text())[3]
    assert pets["db_id"] == "pets"
    assert pets["column_names_original"] == [
        [-1, "*"],
        *([0, "name"], [0, "city"], [0, "income"]),
        *([1, "name"], [1, "species"], [1, "weight"]),
        *([2, "title"], [2, "year"], [2, "owner"], [2, "pet"]),
    ]
    assert (
        pets["column_types"]
        == ["text", *["text", "text", "number"] * 2, "text", "number"] + ["text"] * 2
    )
    assert (pets["primary_keys"], pets["foreign_keys"]) == ([1, 4, 7], [[9, 1], [10, 4]])


def test_a_folder_of_spider_becomes_tasks(module: Import, spider: Path, tmp_path: Path) -> None:
    module("tasks").main(["--data", str(spider), "--out", str(tmp_path / "out")])
    train, val = (
        [task.model_dump() for task in load_tasks(tmp_path / "out" / f"{name}.jsonl")]
        for name in ("train", "val")
    )
    database = f"{spider}/database/pets/pets.sqlite"
    assert train[0] == {
        "id": "pets-0",
        "input": "How many pets?",
        "domain": "simple",
        "db_id": "pets",
        "database": database,
        "schema": "Pet(Name, Weight)",
        "query": "SELECT count(*) FROM Pet",
    }
    assert (train[1]["domain"], val[0]["domain"]) == ("join", "order")
    assert module("reward").score(val[0], {"sql": "SELECT 'Rex'", "answer": "It is Rex."}) == {
        "reward": 1.0,
        "executed": 1.0,
        "answered": 1.0,
    }


@pytest.mark.parametrize(
    ("name", "entry", "sentence"),
    [
        ("dev.json", 3, r"dev\.json, entry 1 is not an object"),
        ("dev.json", {"db_id": "pets"}, r"dev\.json, entry 1: the field `query` is missing\."),
        ("dev.json", ENTRY | {"question": 3}, r"entry 1: the field `question` is 3, not a text\."),
        ("dev.json", ENTRY | {"db_id": "x"}, r"`db_id` is 'x', which is not in tables\.json\."),
        (
            "dev.json",
            ENTRY | {"query": "SELECT nope FROM Pet"},
            r"entry 1: the field `query` fails in .*pets\.sqlite: no such column: nope\.",
        ),
        ("tables.json", {}, r"tables\.json, entry 1: the field `db_id` is missing\."),
        (
            "tables.json",
            SCHEMA | {"table_names_original": [1]},
            r"entry 1: the field `table_names_original` has a name that is not a text\.",
        ),
        (
            "tables.json",
            SCHEMA | {"column_names_original": [[-1, "*"], [1, "Name"]]},
            r"the field `column_names_original\[1\]` is not the number of a table and a name\.",
        ),
    ],
)
def test_a_wrong_entry_is_named(
    module: Import, spider: Path, tmp_path: Path, name: str, entry: object, sentence: str
) -> None:
    entries = json.loads((spider / name).read_text())
    write_json(spider / name, [*entries, entry])
    with pytest.raises(SystemExit, match=sentence):
        module("tasks").main(["--data", str(spider), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, r"Cannot read .*dev\.json: .*No such file.*Name a folder with tables\.json"),
        ("[", r"Cannot read .*dev\.json: "),
        ("{}", r"dev\.json is not a list of objects"),
        ("[]", r"dev\.json is not a list of objects"),
    ],
)
def test_a_wrong_file_is_named(
    module: Import, spider: Path, tmp_path: Path, text: str | None, sentence: str
) -> None:
    (spider / "dev.json").unlink()
    if text is not None:
        (spider / "dev.json").write_text(text)
    with pytest.raises(SystemExit, match=sentence):
        module("tasks").main(["--data", str(spider), "--out", str(tmp_path / "out")])


def test_a_missing_database_is_named(module: Import, spider: Path, tmp_path: Path) -> None:
    shutil.rmtree(spider / "database")
    sentence = r"train_spider\.json, entry 0: there is no database file .*pets\.sqlite\. Take the"
    with pytest.raises(SystemExit, match=sentence):
        module("tasks").main(["--data", str(spider), "--out", str(tmp_path / "out")])
    with pytest.raises(FileNotFoundError, match=r"There is no database file .* `python tasks\.py`"):
        module("database").open_database("data/database/none/none.sqlite")


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELECT nope FROM pet", "no such column: nope"),
        ("DROP TABLE pet", "not a SELECT statement"),
        ("WITH x AS (SELECT 1) DELETE FROM pet", "attempt to write a readonly database"),
        ("SELECT count(*) FROM pet, pet b, pet c, pet d, pet e, pet f, pet g", "interrupted"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT '\0", "null character"),
    ],
)
def test_an_invalid_query_fails_with_sqlites_message(
    module: Import, sql: str, sentence: str
) -> None:
    database = module("database")
    with pytest.raises(database.QueryFailed, match=sentence):
        database.open_database(PETS).rows(sql)


def test_many_threads_share_a_database(module: Import) -> None:
    database = module("database").open_database(PETS)
    with ThreadPoolExecutor(8) as threads:
        counts = threads.map(lambda _: database.rows("SELECT count(*) FROM contest"), range(200))
    assert {count[0][0] for count in counts} == {32}


GOLD = "SELECT 'Ana', 1 UNION ALL SELECT 'Ben', 2"


@pytest.mark.parametrize(
    ("gold", "sql", "reward"),
    [
        (GOLD, GOLD, 1.0),
        (GOLD, "SELECT 'Ben', 2.0 UNION ALL SELECT 'Ana', 1", 1.0),
        (GOLD, f"{GOLD} UNION ALL SELECT 'Ben', 2", 0.0),
        (GOLD, "SELECT 'Ana', '1' UNION ALL SELECT 'Ben', 2", 0.0),
        (GOLD, "SELECT 1 WHERE 0", 0.0),
        (f"{GOLD} ORDER BY 2", f"{GOLD} ORDER BY 1", 1.0),
        (f"{GOLD} ORDER BY 2", f"{GOLD} ORDER BY 2 DESC", 0.0),
    ],
)
def test_rows_are_equal_in_any_order_unless_the_gold_query_orders_them(
    module: Import, gold: str, sql: str, reward: float
) -> None:
    task, result = {"database": PETS, "query": gold}, {"sql": sql, "answer": None}
    expected = {"reward": reward, "executed": 1.0, "answered": 0.0}
    assert module("reward").score(task, result) == expected


def test_a_query_that_does_not_run_scores_nothing(module: Import) -> None:
    task = {"database": PETS, "query": "SELECT 'Rex', 2.5"}
    result = {"sql": "no", "answer": "rex weighs 2.5"}
    expected = {"reward": 0.0, "executed": 0.0, "answered": 1.0}
    assert module("reward").score(task, result) == expected


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


@pytest.mark.parametrize("name", ["ltrain.toml", "rules_off.toml", "gpu.toml", "tinker.toml"])
def test_the_recipes_train_two_of_the_three_agents(folder: Path, name: str) -> None:
    recipe = Recipe.load(folder / name)
    assert recipe.rollout is not None
    assert recipe.policy[0].agents == ("write_query", "rewrite_query")
    assert recipe.rollout.agent_sees == ("input", "database", "schema")


@dataclass
class ScriptedModel(Model):
    """Answers by the first rule whose text is in the last message."""

    rules: list[tuple[str, str]] = field(default_factory=list)

    def respond(
        self, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, str, bytes]:
        *before, last = body["messages"]
        reply = next(reply for text, reply in self.rules if text in last["content"])
        planned = last | {"content": f"{last['content']} [[{reply}]]"}
        return super().respond(path, headers, body | {"messages": [*before, planned]})


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    server = ScriptedModel()
    server.start()
    yield server
    server.stop()


QUESTION = "How many airlines are from Peru?"
GOOD = "SELECT count(*) FROM airline WHERE country = 'Peru'"
BAD = "SELECT count(*) FROM airlines"


def query_span(sql: str, outcome: str) -> str:
    """Return the line of a tool call in the description of a run."""
    status = "ok" if outcome.startswith("[") else "error"
    path = "data/database/flights/flights.sqlite"
    return f"  execute_query {status} execute_sql(database={path}, sql={sql}): {outcome}"


def test_an_approved_query_is_answered_by_the_rewriter(
    run: Run, model: ScriptedModel, folder: Path
) -> None:
    model.rules = [("Is the query", "correct"), ("Rows:", "Two are."), (QUESTION, GOOD)]
    result = run("main", str(folder / "agent"), "flights", QUESTION)
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {
        "sql": GOOD,
        "rows": [[2]],
        "error": None,
        "answer": "Two are.",
    }
    assert describe_calls(result) == [
        f"write_query ok stop 7+5: {GOOD}",
        query_span(GOOD, "[[2]]"),
        "check_query ok stop 7+5: correct",
        "rewrite_query ok stop 7+5: Two are.",
    ]
    assert result.states.select("variable", "value").rows() == [
        ("question", f'"{QUESTION}"'),
        ("database", '"data/database/flights/flights.sqlite"'),
        (
            "schema",
            json.dumps(
                "airline(name, country, revenue)\nairport(name, city, elevation)\n"
                "flight(code, year, airline, airport)"
            ),
        ),
        ("conversation", json.dumps([QUESTION, GOOD], separators=(",", ":"))),
        ("sql", json.dumps(GOOD)),
        (
            "tool.execute_sql.arguments",
            json.dumps(
                {"database": "data/database/flights/flights.sqlite", "sql": GOOD},
                separators=(",", ":"),
            ),
        ),
        ("tool.execute_sql.result", "[[2]]"),
        ("rows", "[[2]]"),
        ("turns", "1"),
        ("feedback", "null"),
        ("answer", '"Two are."'),
    ]
    assert result.executions["complete"].to_list() == [True]
    write, check, answer = (request.body for request in result.model_requests)
    assert [body["max_completion_tokens"] for body in (write, check, answer)] == [48, 4, 24]
    assert [len(body["messages"]) for body in (write, check, answer)] == [10, 1, 12]


@pytest.mark.parametrize(
    ("first", "outcome", "feedback"),
    [
        (BAD, "database.QueryFailed", "Error: no such table: airlines"),
        ("SELECT 1", "[[1]]", "The query is incorrect"),
    ],
)
def test_a_failed_or_rejected_query_is_rewritten_once(
    run: Run, model: ScriptedModel, folder: Path, first: str, outcome: str, feedback: str
) -> None:
    model.rules = [("Is the query", "incorrect"), ("Rows:", "Two are.")]
    model.rules += [(f"{feedback}. {QUESTION}", GOOD), (QUESTION, first)]
    result = run("main", str(folder / "agent"), "flights", QUESTION)
    assert (result.exit_code, result.stderr) == (0, "")
    check = ["check_query ok stop 7+5: incorrect"] if outcome == "[[1]]" else []
    assert describe_calls(result) == [
        f"write_query ok stop 7+5: {first}",
        query_span(first, outcome),
        *check,
        f"rewrite_query ok stop 7+5: {GOOD}",
        query_span(GOOD, "[[2]]"),
        "rewrite_query ok stop 7+5: Two are.",
    ]
    assert json.loads(result.stdout)["answer"] == "Two are."


@pytest.mark.nightly
def test_a_second_failure_ends_the_run(run: Run, model: ScriptedModel, folder: Path) -> None:
    model.rules = [(QUESTION, BAD)]
    result = run("main", str(folder / "agent"), "flights", QUESTION)
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {
        "sql": BAD,
        "rows": [],
        "error": "Error: no such table: airlines",
        "answer": None,
    }
    assert len(result.model_requests) == 2


def test_no_token_of_the_checker_is_trained(
    run: Run, model: ScriptedModel, store: Store, folder: Path, tmp_path: Path
) -> None:
    rules = [("Is the query", "correct"), ("Rows:", "Two are."), ("Error:", GOOD)]
    sampling_agent = str(Path(__file__).with_name("sampling_agent"))
    for sample, reply in enumerate((GOOD, BAD)):
        model.rules = [*rules, (QUESTION, reply)]
        identity = {
            "LTRAIN_ROLLOUT_ID": f"rollout{sample}",
            "LTRAIN_WAVE": "0",
            "LTRAIN_SAMPLE_INDEX": str(sample),
        }
        result = run("main", sampling_agent, "flights", QUESTION, **identity)
        assert (result.exit_code, result.stderr) == (0, "")
    recipe = Recipe.load(folder / "ltrain.toml")
    policy = recipe.policy[0].model_copy(update={"token_source": "capture"})  # no gateway here
    changes = {"source": recipe.source.model_copy(update={"run": "frameworks"})}
    rule_alone = recipe.model_copy(
        update=changes | {"policy": (policy,), "reward": recipe.reward[1:]}
    )
    dataset = build(store, rule_alone, tmp_path / "dataset")
    calls = dataset.table("calls").filter(pl.col("kind") == "llm")
    assert Counter(calls["agent"]) == {"write_query": 2, "check_query": 1, "rewrite_query": 3}
    transitions = dataset.table("transitions")
    assert Counter(transitions["agent"]) == {"write_query": 2, "rewrite_query": 3}
    trained = dataset.table("samples")["response_mask"].list.sum().sum()
    assert trained == calls.filter(pl.col("agent") != "check_query")["output_tokens"].sum() == 25
