import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.transforms.exports.conftest import Talks, converted, lines, question, told

from ltrain_train.rollout.tasks import load_tasks
from ltrain_transforms.dataset import Dataset
from ltrain_transforms.exports import Options, write
from ltrain_transforms.exports.converted import line
from ltrain_transforms.exports.tasks import _input, tasks

Built = Callable[..., Dataset]


def test_a_task_is_asked_once_whoever_failed_at_it(
    talks: Talks, built: Built, tmp_path: Path
) -> None:
    ids = []
    for sample in range(2):
        talk = talks("t1", sample, *question("1 + 1?"))
        talk.answers("2")
        ids.append(talk.ends(None, "infra" if sample else "ok").execution)
    dataset = built()
    made = converted(tasks, dataset, Options())
    assert made.rows == [{"id": "t1", "input": "1 + 1?", "domain": "db"}]
    assert made.lineage == [sorted(ids)]
    write(dataset, "tasks", Options(), tmp_path / "again.jsonl")
    (task,) = load_tasks(tmp_path / "again.jsonl")
    assert (task.id, task.input, task.domain) == ("t1", "1 + 1?", "db")


def test_the_outermost_graphs_input_comes_before_a_calls(scene: Any, built: Built) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.llm("write", state={"question": "how many?"})
    rollout.close()
    (asked,) = lines(converted(tasks, built(), Options()))
    assert asked["input"] == {"question": "how many?"}


def test_a_conversation_that_was_under_way_is_handed_on_whole(talks: Talks, built: Built) -> None:
    said = (told("user", "hi"), told("assistant", "hello"), told("user", "1 + 1?"))
    talk = talks("t1", 0, *said)
    talk.answers("2")
    talk.ends(1.0)
    (asked,) = lines(converted(tasks, built(), Options()))
    assert [one["role"] for one in asked["input"]] == ["user", "assistant", "user"]
    assert json.dumps(asked)


def test_what_json_cannot_say_is_written_all_the_same(
    scene: Any, built: Built, tmp_path: Path
) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.llm("write", state={"limit": float("nan")})
    rollout.close()
    write(built(), "tasks", Options(), tmp_path / "again.jsonl")
    (task,) = load_tasks(tmp_path / "again.jsonl")
    assert task.input == {"limit": "NaN"}
    assert line({"x": "half \ud83d of it"}) == b'{"x": "half ? of it"}\n'


def test_who_was_asked_nothing_is_told(talks: Talks, built: Built) -> None:
    silent = talks("t1", 0).ends(1.0)
    made = converted(tasks, built(), Options())
    assert made.rows == []
    assert made.drops.select("id", "reason").rows() == [(silent.execution, "no_input")]


@pytest.mark.parametrize(
    ("outer", "asked"),
    [("[" * 100_000, "[" * 100_000), ('{"a": 1e999, "b": NaN}', {"a": "1e999", "b": "NaN"})],
    ids=["deep", "infinite"],
)
def test_an_input_that_json_cannot_say_is_text(outer: str, asked: Any) -> None:
    found = _input(outer, None)
    assert found == asked
    assert json.loads(line({"input": found})) == {"input": asked}
