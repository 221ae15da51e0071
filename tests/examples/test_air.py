"""The example of intermediate rewards: agent, tasks, and what each of its recipes rewards."""

import json
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.examples.example_module import load_module
from tests.otlp import insert_otlp
from tests.runners import make_runner

from ltrain_collector.store import Store
from ltrain_train.rollout import Task, load_tasks
from ltrain_transforms.datasets import derive
from ltrain_transforms.recipe import Recipe, Source
from ltrain_transforms.source import Selection, read_spans

FOLDER = Path(__file__).parents[2] / "examples" / "air"
VARIANTS = ("rules_off", "tool_status", "potentials", "gated", "farmed", "ltrain")
GOOD, BAD, ANSWER = "w7", "w100", "w400"
SCRIPTS = {
    "reads": {"w300": GOOD, "w301": GOOD, "w302": ANSWER},
    "guesses": {"w300": ANSWER},
    "fails": {"w300": GOOD, "w301": BAD},
    "farms": {"w300": GOOD, "w301": GOOD, "w302": GOOD},
}
"""What the model answers to the last word of a prompt, by task."""


load = partial(load_module, FOLDER)


def test_the_task_file_is_that_of_the_seed() -> None:
    made = load("tasks").questions()
    written = (FOLDER / "train.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == made
    assert load("tasks").questions(count=3) == made[:3]
    assert load("tasks").questions(seed=1) != made
    assert len(load_tasks(FOLDER / "train.jsonl")) == 192


def test_the_recipes_differ_only_in_their_rules() -> None:
    written = {name: tomllib.loads((FOLDER / f"{name}.toml").read_text()) for name in VARIANTS}
    runs = {recipe["source"].pop("run") for recipe in written.values()}
    rewards = {name: recipe.pop("reward") for name, recipe in written.items()}
    assert len(runs) == len(VARIANTS)
    assert all(recipe == written["ltrain"] for recipe in written.values())
    outcome = {"name": "answer", "evaluation": "reward", "from": "runner"}
    assert all(reward[0] == outcome for reward in rewards.values())
    own = {name: reward[1:] for name, reward in rewards.items()}
    assert own["rules_off"] == []
    assert own["tool_status"] == [{"use": "tool-failed"}, {"use": "tool-succeeded"}]
    assert own["potentials"] == [{"use": "progress"}]
    [plain] = own["farmed"]
    assert own["gated"] == [plain | {"gate": "reward > 0"}]
    assert own["ltrain"] == [plain | {"max": 1.0}]


@pytest.fixture
def recorded(
    outside: Any, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Run the agent once for each script; return the results by task, with the spans stored."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", outside.url)
    outside.rules = [
        (f"{name} {last}", word)
        for name, script in SCRIPTS.items()
        for last, word in script.items()
    ]
    with make_runner(
        run="r",
        agent="agent:solve",
        reward="reward:score",
        folder=FOLDER,
        gateway=outside.url,
        secret="a secret of thirty-two characters",
        policy="air",
        home=tmp_path,
        workers=1,
    ) as runner:
        tasks = [Task(id=name, input=name) for name in SCRIPTS]
        results = runner.run("train", 0, tasks, 1, sampling={})
    for request in outside.requests:
        insert_otlp(store, request)
    return {str(result.identity.task): result for result in results}


def test_the_outcome_needs_both_pages_and_an_answer(recorded: dict[str, Any]) -> None:
    rewards = {task: result.rewards for task, result in recorded.items()}
    assert rewards == {
        "reads": {"reward": 1.0, "reads": 2.0},
        "guesses": {"reward": 0.0, "reads": 0.0},
        "fails": {"reward": 0.0, "reads": 1.0},
        "farms": {"reward": 0.0, "reads": 8.0},
    }
    calls = {task: result.llm_calls for task, result in recorded.items()}
    assert calls == {"reads": 3, "guesses": 1, "fails": 8, "farms": 8}


EXPECTED: dict[str, dict[str, list[tuple[int, float]]]] = {
    "rules_off": {},
    "tool_status": {
        "reads": [(0, 0.1), (1, 0.1)],
        "fails": [(1, -0.2), (2, -0.2), (3, -0.2)],
    },
    "potentials": {
        "reads": [(0, 0.5), (1, 0.5), (2, -1.0)],
        "fails": [(0, 0.5), (7, -0.5)],
        "farms": [(0, 0.5), (1, 0.5), (7, -1.0)],
    },
    "gated": {"reads": [(0, 0.5), (1, 0.5)]},
    "farmed": {
        "reads": [(0, 0.5), (1, 0.5)],
        "fails": [(0, 0.5)],
        "farms": [(turn, 0.5) for turn in range(8)],
    },
    "ltrain": {
        "reads": [(0, 0.5), (1, 0.5)],
        "fails": [(0, 0.5)],
        "farms": [(0, 0.5), (1, 0.5)],
    },
}
"""By recipe and task: the turns of the model that its rules credit, and by how much."""


def test_each_recipe_credits_the_calls_that_it_names(
    recorded: dict[str, Any], store: Store
) -> None:
    spans, _ = read_spans(store, Source(), Selection(run="r", mode="train"))
    for name, expected in EXPECTED.items():
        tables = derive(spans, Recipe.load(FOLDER / f"{name}.toml")).tables
        assert credited(tables.__getitem__) == expected, name
        outcomes = tables["rewards"].filter(rule="answer")
        assert outcomes["value"].sum() == 1.0


def credited(table: Callable[[str], pl.DataFrame]) -> dict[str, list[tuple[int, float]]]:
    """Return the sum of the rules' rewards of each model call that has one, by task and turn."""
    calls, executions = table("calls"), table("executions")
    tasks = dict(executions.select("execution_id", "task_id").iter_rows())
    found: dict[str, list[tuple[int, float]]] = {}
    model_calls = calls.filter(kind="llm").sort("execution_id", "start")
    sums = table("rewards").filter(source="rule").group_by("call_id").agg(pl.col("value").sum())
    values = dict(sums.iter_rows())
    for (execution,), own in model_calls.group_by("execution_id", maintain_order=True):
        turns = [
            (turn, round(values.get(call, 0.0), 6)) for turn, call in enumerate(own["call_id"])
        ]
        if rewarded := [pair for pair in turns if pair[1]]:
            found[tasks[execution]] = rewarded
    return found
