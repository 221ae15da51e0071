"""Preference pairs of an export of Langfuse, which names no tasks."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.transforms.exports.conftest import converted, lines

from ltrain_collector.store import Store
from ltrain_collector.transfer.importing import import_files
from ltrain_transforms.datasets import Dataset, build
from ltrain_transforms.exports import ExportOptions
from ltrain_transforms.exports.preferences import export_preferences
from ltrain_transforms.exports.tasks import export_tasks
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports import Grid, traffic_report
from ltrain_transforms.source import traffic_source

RECIPE = """
source = { mode = "prod", execution = "trace" }
policy = [{ name = "helper" }]
reward = [{ name = "thumbs", evaluation = "thumbs", from = "agent" }]
"""
TOOL = {"type": "function", "function": {"name": "search", "parameters": {}}}
Records = list[dict[str, Any]]


def message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def trace(
    name: str, question: str, answers: list[str], *, system: str = "You help.", tools: Any = ()
) -> Iterator[dict[str, Any]]:
    """Yield the observations of a trace in which one request is answered once or more."""
    prompt = [message("system", system), message("user", question)]
    for number, answer in enumerate(answers):
        yield {
            "id": f"{name}-{number}",
            "traceId": name,
            "type": "GENERATION",
            "name": "chat",
            "startTime": f"2026-11-02T10:00:0{number}Z",
            "endTime": f"2026-11-02T10:00:0{number}.5Z",
            "model": "helper",
            "input": {"messages": prompt, "tools": list(tools)} if tools else prompt,
            "output": message("assistant", answer),
        }


def score(name: str, value: float, observation: str | None = None) -> dict[str, Any]:
    return {
        "id": f"s-{name}-{observation}",
        "name": "thumbs",
        "value": value,
        "dataType": "NUMERIC",
        "traceId": name,
        "observationId": observation,
        "timestamp": "2026-11-02T11:00:00Z",
    }


@pytest.fixture
def imported(store: Store, tmp_path: Path) -> Callable[[Records], Dataset]:
    """Return a function that imports records, and builds a dataset of them."""

    def make(records: Records) -> Dataset:
        file, recipe = tmp_path / "export.jsonl", tmp_path / "helper.toml"
        file.write_text("".join(f"{json.dumps(each)}\n" for each in records))
        recipe.write_text(RECIPE)
        assert import_files(store, [file], lambda _: None).unreadable == 0
        return build(store, Recipe.load(recipe), tmp_path / "dataset")

    return make


def pairs(dataset: Dataset, most: int = 1) -> tuple[list[tuple[str, str, str]], dict[str, int]]:
    """Return question, chosen and rejected of each pair, and the drops by reason."""
    made = converted(export_preferences, dataset, ExportOptions(pairs=most))
    rows = [
        tuple(row[name][-1]["content"] for name in ("prompt", "chosen", "rejected"))
        for row in lines(made)
    ]
    return rows, dict(made.drops["reason"].value_counts().iter_rows())


def test_equal_questions_are_one_task(imported: Callable[[Records], Dataset], store: Store) -> None:
    dataset = imported(
        [
            *trace("t1", "1 + 1?", ["2"]),
            *trace("t2", "1 + 1?", ["3"]),
            *trace("t3", "1 + 2?", ["4"]),
            *trace("t4", "1 + 1?", ["5"], system="You joke."),
            *trace("t5", "1 + 1?", ["6"], tools=[TOOL]),
            score("t1", 1.0),
            *(score(f"t{number}", 0.0) for number in range(2, 6)),
        ]
    )
    assert pairs(dataset) == ([("1 + 1?", "2", "3")], {"alone": 3})
    tasks = lines(converted(export_tasks, dataset, ExportOptions()))
    assert sorted(each["input"] for each in tasks) == ["1 + 1?"] * 3 + ["1 + 2?"]
    source = traffic_source(store, run=None, mode=None, since=None)
    grids = [each for each in traffic_report(store, source).parts if isinstance(each, Grid)]
    counts = {row[0]: row[1] for row in grids[-1].rows}
    assert (counts["preferences (DPO)"], counts["tasks for rollouts"]) == (1, 4)


def test_a_retry_is_a_pair_of_its_ratings(imported: Callable[[Records], Dataset]) -> None:
    dataset = imported(
        [
            *trace("t1", "1 + 1?", ["3", "2", "?"]),
            *trace("t2", "1 + 2?", ["5", "3"]),
            score("t1", 0.0, "t1-0"),
            score("t1", 1.0, "t1-1"),
            score("t2", 1.0, "t2-1"),
        ]
    )
    # an answer without a score is compared with nothing
    assert pairs(dataset, 9) == ([("1 + 1?", "2", "3")], {"alone": 1})


def test_two_answers_are_a_pair_once(imported: Callable[[Records], Dataset]) -> None:
    dataset = imported(
        [
            *trace("t1", "1 + 1?", ["2"]),
            *trace("t2", "1 + 1?", ["3"]),
            *(score("t1", 1.0, one) for one in (None, "t1-0")),
            *(score("t2", 0.0, one) for one in (None, "t2-0")),
        ]
    )
    assert pairs(dataset, 9) == ([("1 + 1?", "2", "3")], {})
