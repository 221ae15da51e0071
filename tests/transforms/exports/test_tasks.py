import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.transforms.exports.conftest import Talks, converted, lines, message, question

from ltrain_train.rollout import load_tasks
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.exports import export_dataset
from ltrain_transforms.exports.conversion import ExportOptions, encode_line
from ltrain_transforms.exports.tasks import _input, export_tasks
from ltrain_transforms.exports.verl import export_verl

Built = Callable[..., Dataset]


def test_a_task_is_exported_once_even_if_a_rollout_failed(
    talks: Talks, built: Built, tmp_path: Path
) -> None:
    ids = []
    for sample in range(2):
        talk = talks("t1", sample, *question("1 + 1?"))
        talk.answers("2")
        ids.append(talk.ends(None, "infra" if sample else "ok").execution)
    dataset = built()
    made = converted(export_tasks, dataset, ExportOptions())
    assert made.rows == [{"id": "t1", "input": "1 + 1?", "domain": "db"}]
    assert made.lineage == [sorted(ids)]
    export_dataset(dataset, "tasks", ExportOptions(), tmp_path / "again.jsonl")
    (task,) = load_tasks(tmp_path / "again.jsonl")
    assert (task.id, task.input, task.domain) == ("t1", "1 + 1?", "db")


@pytest.mark.parametrize("mark", [{}, {"ltrain.cut": "ltrain.task.fields"}])
def test_a_recorded_task_is_exported_with_its_expected_answer(
    talks: Talks, built: Built, mark: dict[str, str]
) -> None:
    talk = talks("t1", 0, *question("1 + 1?"))
    talk.attempt.dispatch()
    talk.answers("2")
    attempt = talk.ends(1.0).attempt
    dispatch = next(span for span in attempt.spans if span.name == "ltrain.rollout.dispatch")
    dispatch.attributes["ltrain.task.input"] = '{"sum": "1 + 1"}'
    attempt.spans[-1].attributes.update({"ltrain.task.fields": '{"gold": "2"}', **mark})
    attempt.spans[-1].attributes["ltrain.rollout.result"] = '"2"'
    dataset = built()
    (task,) = lines(converted(export_tasks, dataset, ExportOptions()))
    prompts = converted(export_verl, dataset, ExportOptions()).rows
    assert isinstance(prompts, pl.DataFrame)
    model = prompts["reward_model"][0]
    if mark:  # what was shortened is not the task
        assert task == {"id": "t1", "input": "1 + 1?", "domain": "db"}
        assert model["ground_truth"] == ""
    else:
        assert task == {"id": "t1", "input": {"sum": "1 + 1"}, "domain": "db", "gold": "2"}
        assert model["ground_truth"] == "2"


def test_the_input_of_the_outermost_graph_is_preferred(scene: Any, built: Built) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.llm("write", state={"question": "how many?"})
    rollout.close()
    (task,) = lines(converted(export_tasks, built(), ExportOptions()))
    assert task["input"] == {"question": "how many?"}


def test_an_input_of_several_messages_is_exported_whole(talks: Talks, built: Built) -> None:
    history = (message("user", "hi"), message("assistant", "hello"), message("user", "1 + 1?"))
    talk = talks("t1", 0, *history)
    talk.answers("2")
    talk.ends(1.0)
    (task,) = lines(converted(export_tasks, built(), ExportOptions()))
    assert [one["role"] for one in task["input"]] == ["user", "assistant", "user"]
    assert json.dumps(task)


def test_values_that_json_cannot_encode_are_written(
    scene: Any, built: Built, tmp_path: Path
) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.llm("write", state={"limit": float("nan")})
    rollout.close()
    export_dataset(built(), "tasks", ExportOptions(), tmp_path / "again.jsonl")
    (task,) = load_tasks(tmp_path / "again.jsonl")
    assert task.input == {"limit": "NaN"}
    assert encode_line({"x": "half \ud83d of it"}) == b'{"x": "half ? of it"}\n'


def test_a_rollout_without_an_input_is_a_drop(talks: Talks, built: Built) -> None:
    silent = talks("t1", 0).ends(1.0)
    made = converted(export_tasks, built(), ExportOptions())
    assert made.rows == []
    assert made.drops.select("id", "reason").rows() == [(silent.execution, "no_input")]


@pytest.mark.parametrize(
    ("outer", "expected"),
    [("[" * 100_000, "[" * 100_000), ('{"a": 1e999, "b": NaN}', {"a": "1e999", "b": "NaN"})],
    ids=["deep", "infinite"],
)
def test_an_input_that_json_cannot_encode_is_text(outer: str, expected: Any) -> None:
    decoded = _input(outer, None)
    assert decoded == expected
    assert json.loads(encode_line({"input": decoded})) == {"input": expected}
