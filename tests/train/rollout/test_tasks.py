"""Task files: valid tasks, and the error for a line that is not a task."""

from pathlib import Path

import pytest

from ltrain_train.rollout.tasks import BadTasks, load_tasks, tasks_digest


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


def test_a_task_has_the_content_of_its_line(tmp_path: Path) -> None:
    line = '{"id": "1", "input": {"q": "?"}, "domain": "music", "gold": "SELECT 1"}'
    (task,) = load_tasks(written(tmp_path / "t.jsonl", line, ""))
    assert task.model_dump() == {
        "id": "1",
        "input": {"q": "?"},
        "domain": "music",
        "gold": "SELECT 1",
    }
    assert task.file_digest == tasks_digest([task])


def test_the_digest_depends_on_the_content_not_on_the_formatting(tmp_path: Path) -> None:
    one = load_tasks(written(tmp_path / "a.jsonl", '{"id":"1","input":"x"}'))
    same = load_tasks(written(tmp_path / "b.jsonl", '{ "id": "1",  "input": "x" }', ""))
    other = load_tasks(written(tmp_path / "c.jsonl", '{"id":"1","input":"y"}'))
    assert one[0].file_digest == same[0].file_digest != other[0].file_digest


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2: Invalid JSON"),
        ('{"input": "x"}', "line 2: id: Field required"),
        ('{"id": 7, "input": "x"}', "line 2: id: Input should be a valid string"),
        ('{"id": "1", "input": "x"}', "two tasks have the id '1'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    with pytest.raises(BadTasks, match=sentence):
        load_tasks(written(tmp_path / "t.jsonl", '{"id": "1", "input": "x"}', line))


def test_a_missing_file_and_an_empty_file_are_reported(tmp_path: Path) -> None:
    with pytest.raises(BadTasks, match="Cannot read tasks from"):
        load_tasks(tmp_path / "absent.jsonl")
    with pytest.raises(BadTasks, match="contains no task"):
        load_tasks(written(tmp_path / "empty.jsonl", ""))
