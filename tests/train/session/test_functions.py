"""Functions of a session, imported by another process."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ltrain_train.errors import BadRun
from ltrain_train.loop import command
from ltrain_train.rollout import BadTasks
from ltrain_train.runs.plan import Plan
from ltrain_train.session import train
from ltrain_train.session.train import write_functions
from ltrain_train.workers import is_reference
from ltrain_transforms.errors import BadRecipe

SECTIONS = {"policy": [{"name": "sql"}], "reward": [{"name": "r", "evaluation": "reward"}]}


def load(folder: Path, reference: str, call: str) -> str:
    """Load a reference in another process, as a worker does, and call the function."""
    assert is_reference(reference)
    code = (
        "from pathlib import Path; from ltrain_train.workers import load_function; "
        f"print(load_function({reference!r}, Path.cwd()){call})"
    )
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
    folder, path = tmp_path / "a session", [str(tmp_path / "beside")]
    references = write_functions(folder, functions, path)
    assert load(tmp_path, references["agent"], "(2)") == "imported 6"
    assert load(tmp_path, references["reward"], "(2)") == "-2"
    assert folder.stat().st_mode & 0o077 == 0
    assert write_functions(folder, functions, path) == references
    factor = 4
    assert write_functions(folder, {"agent": agent}, path)["agent"] != references["agent"]
    assert load(tmp_path, references["agent"], "(2)") == "imported 6"


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
        (
            {"tasks": [{"id": "1"}], "agent": "a:b", "reward": "a:c"},
            BadTasks,
            "tasks: .* input: Field required",
        ),
    ],
)
def test_what_a_run_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object],
    error: type[Exception], sentence: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path))
    with pytest.raises(error, match=sentence):
        train(SECTIONS, **arguments)  # type: ignore[arg-type]


def test_the_files_of_the_recipe_are_those_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path / "home"))
    plans = list[Plan]()
    monkeypatch.setattr(command, "train_online", lambda plan, as_json: plans.append(plan))
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    recipe = tmp_path / "ltrain.toml"
    recipe.write_text(
        '[[policy]]\nname = "sql"\n[[reward]]\nname = "r"\nevaluation = "reward"\n'
        '[serve]\nchat_template = "chat.jinja"\n'
        '[rollout]\ntasks = "t.jsonl"\nremote = true\nreward = "./judge.sh"\n'
    )
    train(recipe, reward=lambda task, result: 1.0, updates=3)
    [plan] = plans
    assert (plan.folder, plan.name, plan.train.updates) == (tmp_path, tmp_path.name, 3)
    assert str(tmp_path / "chat.jinja") in " ".join(plan.serve_arguments)
    assert (plan.rollout.tasks, plan.rollout.agent, plan.rollout.remote) == ("t.jsonl", None, True)
    assert plan.rollout.reward is not None and is_reference(plan.rollout.reward)


def test_a_wrong_section_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTRAIN_HOME", str(tmp_path))
    with pytest.raises(BadRecipe, match="Did you mean 'updates'"):
        train(SECTIONS | {"train": {"updatse": 1}})
