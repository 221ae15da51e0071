"""A reward that is a shell command."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ltrain_train.rollout.rewards import RewardFailed, RewardSource, open_reward, source
from ltrain_train.rollout.tasks import Task
from ltrain_train.workers.reference import BadReference

TASK = Task.model_validate({"id": "a", "input": "x", "gold": "two words"})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "RETRY_PAUSE", 0.0)


@pytest.fixture
def opened() -> Iterator[Any]:
    sources: list[RewardSource] = []

    def open_(command: str, folder: Path, timeout: float = 60) -> RewardSource:
        sources.append(open_reward(command, folder, timeout))
        return sources[-1]

    yield open_
    for each in sources:
        each.close()


def test_a_command_reads_task_and_result_and_prints_the_value(opened: Any, tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(
        "import json, sys\n"
        "given = json.load(sys.stdin)\n"
        "print('judging')\n"
        "print(json.dumps({'answer': given['task']['gold'] == given['result'], 'style': 2}))\n"
    )
    reward = opened("python judge.py", tmp_path)
    assert reward.score(TASK, "two words") == {"answer": 1.0, "style": 2.0}
    assert reward.score(TASK, "one") == {"answer": 0.0, "style": 2.0}


def test_a_number_has_the_name_reward(opened: Any, tmp_path: Path) -> None:
    assert opened("cat >/dev/null; echo 0.5", tmp_path).score(TASK, None) == {"reward": 0.5}


def test_it_finds_a_service_in_its_environment(opened: Any, tmp_path: Path) -> None:
    reward = opened("printenv LTRAIN_SERVICE_DB >where; echo 1", tmp_path)
    reward.score(TASK, None, {"db": "http://127.0.0.1:1"})
    assert (tmp_path / "where").read_text() == "http://127.0.0.1:1\n"


def test_it_runs_in_the_folder_without_secrets(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_STORE_SECRET", "secret")
    monkeypatch.setenv("LTRAIN_REWARD_KEY", "secret")
    opened("pwd >where; env >environment; echo 1", tmp_path).score(TASK, None)
    assert (tmp_path / "where").read_text().strip() == str(tmp_path)
    assert "=secret" not in (tmp_path / "environment").read_text()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("echo nothing useful", "Expecting value"),
        ("echo '\"1\"'", "'1' is a text, not a number"),
        ("echo NaN", "NaN is not JSON"),
        ("echo '{\"a\": null}'", "NoneType"),
        ("true", "Expecting value"),
        ("echo broken >&2; exit 3", "it ended with status 3: broken"),
        ("no-such-program now", "it ended with status 127"),
    ],
)
def test_anything_else_is_a_failure(opened: Any, tmp_path: Path, command: str, says: str) -> None:
    with pytest.raises(RewardFailed, match=r"The reward command failed on task 'a'") as failure:
        opened(f"echo >>calls; {command}", tmp_path).score(TASK, None)
    assert says in str(failure.value)
    assert len((tmp_path / "calls").read_text()) == source.MAX_CALLS


def test_a_command_that_hangs_is_ended_with_all_it_started(opened: Any, tmp_path: Path) -> None:
    command = "sleep 600 & echo $! >child; echo >>calls; wait"
    with pytest.raises(RewardFailed, match=r"has not ended after 1 s on task 'a'"):
        opened(command, tmp_path, timeout=1).score(TASK, None)
    assert not os.path.exists(f"/proc/{(tmp_path / 'child').read_text().strip()}")
    assert len((tmp_path / "calls").read_text()) == 1


@pytest.mark.parametrize("word", ["reward.score", "score", "./judge"])
def test_one_word_that_is_no_program_is_refused_at_once(tmp_path: Path, word: str) -> None:
    with pytest.raises(BadReference, match=r"is no reward: not a URL, not module:function and no"):
        open_reward(word, tmp_path)


def test_a_program_of_the_folder_is_a_command(opened: Any, tmp_path: Path) -> None:
    program = tmp_path / "judge"
    program.write_text(f"#!/bin/sh\necho '{json.dumps({'a': 1})}'\n")
    program.chmod(0o755)
    assert opened("./judge", tmp_path).score(TASK, None) == {"a": 1.0}
