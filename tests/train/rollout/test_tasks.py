"""Task files: what is read, and what is said of a line that is no task."""

from pathlib import Path

import pytest

from ltrain_train.rollout.tasks import BadTasks, load_tasks, tasks_digest


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


def test_a_task_keeps_what_its_line_says(tmp_path: Path) -> None:
    line = '{"id": "1", "input": {"q": "?"}, "domain": "music", "gold": "SELECT 1"}'
    (task,) = load_tasks(written(tmp_path / "t.jsonl", line, ""))
    assert task.model_dump() == {
        "id": "1",
        "input": {"q": "?"},
        "domain": "music",
        "gold": "SELECT 1",
    }
    assert task.file_digest == tasks_digest([task])


def test_the_digest_is_of_what_is_said_not_of_its_spelling(tmp_path: Path) -> None:
    one = load_tasks(written(tmp_path / "a.jsonl", '{"id":"1","input":"x"}'))
    same = load_tasks(written(tmp_path / "b.jsonl", '{ "id": "1",  "input": "x" }', ""))
    other = load_tasks(written(tmp_path / "c.jsonl", '{"id":"1","input":"y"}'))
    assert one[0].file_digest == same[0].file_digest != other[0].file_digest


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2: Invalid JSON"),
        ('{"input": "x"}', "line 2: id: Field required"),
        ('{"id": 7, "input": "x"}', "line 2: id: Input should be a valid string"),
        ('{"id": "1", "input": "x"}', "two tasks have the id '1'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(BadTasks, match=says):
        load_tasks(written(tmp_path / "t.jsonl", '{"id": "1", "input": "x"}', line))


def test_no_file_and_no_task_are_said(tmp_path: Path) -> None:
    with pytest.raises(BadTasks, match="No tasks at"):
        load_tasks(tmp_path / "absent.jsonl")
    with pytest.raises(BadTasks, match="holds no task"):
        load_tasks(written(tmp_path / "empty.jsonl", ""))
