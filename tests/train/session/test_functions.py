"""Functions of a session, imported by another process."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ltrain_train.errors import BadRun
from ltrain_train.rollout import BadTasks
from ltrain_train.session import train
from ltrain_train.session.functions import write_functions
from ltrain_transforms.errors import BadRecipe

SECTIONS = {"policy": [{"name": "sql"}], "reward": [{"name": "r", "evaluation": "reward"}]}


def load(folder: Path, reference: str, call: str) -> str:
    """Import a reference in another process, as a worker does, and call the function."""
    module, _, name = reference.partition(":")
    code = f"from {module} import {name}; print({name}{call})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_function_is_stored_with_what_it_uses(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "mine.py").write_text("WORD = 'imported'\n")
    factor = 3

    def agent(number: int) -> str:
        import mine  # type: ignore[import-not-found]

        return f"{mine.WORD} {factor * number}"

    functions = {"agent": agent, "reward": lambda x: -x}
    folder, path = tmp_path / "session", [str(tmp_path / "beside")]
    references = write_functions(folder, functions, path)
    assert load(folder, references["agent"], "(2)") == "imported 6"
    assert load(folder, references["reward"], "(2)") == "-2"
    assert folder.stat().st_mode & 0o077 == 0
    assert write_functions(folder, functions, path) == references
    factor = 4
    assert write_functions(folder, {"agent": agent}, path)["agent"] != references["agent"]
    assert load(folder, references["agent"], "(2)") == "imported 6"


def test_a_function_that_holds_a_lock_is_named(tmp_path: Path) -> None:
    lock = threading.Lock()

    def agent() -> object:
        return lock

    with pytest.raises(BadRun, match=r"The agent of this session cannot be sent .*lock"):
        write_functions(tmp_path, {"agent": agent}, [])


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"agent": "a:b"}, BadRun, "it has no tasks. Pass tasks="),
        ({"tasks": [{"id": "1", "input": "x"}]}, BadRun, "it has no agent. Pass agent="),
        ({"tasks": [{"id": "1"}], "agent": "a:b"}, BadTasks, "tasks: .* input: Field required"),
    ],
)
def test_what_a_run_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object],
    error: type[Exception], sentence: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path))
    with pytest.raises(error, match=sentence):
        train(SECTIONS, **arguments)  # type: ignore[arg-type]


def test_a_wrong_section_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path))
    with pytest.raises(BadRecipe, match="Did you mean 'updates'"):
        train(SECTIONS | {"train": {"updatse": 1}})
