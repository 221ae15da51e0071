"""The code repair example: its repositories, its reward, its teacher, and what an attempt sees."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.examples.example_module import load_module

from ltrain_train.rollout import load_tasks
from ltrain_train.sandboxes import SandboxSettings
from ltrain_transforms.recipe import Recipe

FOLDER = Path(__file__).parents[2] / "examples" / "code_repair"

load = partial(load_module, FOLDER)


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def repair(folder: Path, expression: str) -> None:
    """Let the function of the module in `folder` return another expression."""
    (module,) = folder.glob("*.py")
    module.write_text(re.sub("return .*", f"return {expression}", module.read_text()))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the repository of the task `train-0`: `add_shipping(price, shipping)`."""
    folder = tmp_path / "repository"
    folder.mkdir()
    source = FOLDER / "repositories" / "train-0" / "shop.py"
    (folder / "shop.py").write_text(source.read_text())
    return folder


def test_the_files_are_those_of_the_generator(tmp_path: Path) -> None:
    load("tasks").main(["--out", str(tmp_path)])
    for name in ("train.jsonl", "val.jsonl", "repositories/val-3/farm.py"):
        assert (tmp_path / name).read_text() == (FOLDER / name).read_text()
    names = sorted(path.name for path in (FOLDER / "repositories").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "repositories").iterdir())


def test_no_held_out_function_and_no_module_is_trained_on() -> None:
    train, val = (
        [task.model_dump() for task in load_tasks(FOLDER / f"{side}.jsonl")]
        for side in ("train", "val")
    )
    for key in ("module", "function"):
        assert {task[key] for task in train}.isdisjoint(task[key] for task in val)


def test_one_expression_of_the_five_passes_the_doctest(repository: Path) -> None:
    passed = []
    for key, expression in load("functions").EXPRESSIONS.items():
        repair(repository, expression.format(a="price", b="shipping"))
        command = [sys.executable, "-B", "-m", "doctest", "shop.py"]
        if subprocess.run(command, cwd=repository, capture_output=True).returncode == 0:
            passed.append(key)
    assert passed == ["sum"]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("price + shipping", 1.0),
        ("sum((price, shipping))", 1.0),
        ("price - shipping", 0.0),
        ("10", 0.0),  # what the doctest expects
        ("__import__('os')._exit(0)", 0.0),
        ("print('[148, 59, 89, 52]') or __import__('os')._exit(0)", 0.0),
        ("open('/etc/shadow').read()", 0.0),
        ("(", 0.0),
    ],
)
def test_a_repair_is_rewarded_by_hidden_cases(
    repository: Path, expression: str, value: float
) -> None:
    task = json.loads((FOLDER / "train.jsonl").read_text().splitlines()[0])
    repair(repository, expression)
    task["cases"] = [[1, 2], [30, 4]]
    task["expected"] = [3, 34]
    values = load("reward").score(task, "", str(repository), "a diff")
    assert values == {"reward": value, "edited": 1.0}


def test_an_attempt_without_a_repository_has_no_reward() -> None:
    task = json.loads((FOLDER / "train.jsonl").read_text().splitlines()[0])
    assert load("reward").score(task, "", None, None) == {"reward": 0.0, "edited": 0.0}


@pytest.mark.parametrize(
    ("tool", "parameter", "end", "last"),
    [
        ("bash", "command", " && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", None),
        ("exec_command", "cmd", "", "Repaired."),
    ],
)
def test_the_teacher_knows_the_repair_and_is_careless(
    repository: Path, tool: str, parameter: str, end: str, last: str | None
) -> None:
    next_message, drawn = load("teacher").next_message, random.Random(0)
    task = json.loads((FOLDER / "train.jsonl").read_text().splitlines()[0])
    messages = [{"role": "user", "content": task["input"]}]
    tools = [{"function": {"name": "view_image"}}, {"function": {"name": tool}}]

    def commands() -> set[str]:
        answers = [next_message({"messages": messages, "tools": tools}, drawn) for _ in range(100)]
        calls = [call for answer in answers for call in answer["tool_calls"]]
        assert {call["function"]["name"] for call in calls} == {tool}
        return {json.loads(call["function"]["arguments"])[parameter] for call in calls}

    assert commands() == {"cat shop.py", "cat src/shop.py"}
    messages.append({"role": "tool", "content": "cat: src/shop.py: No such file or directory"})
    assert commands() == {"cat shop.py"}
    messages.append({"role": "tool", "content": (repository / "shop.py").read_text()})
    edit = "'s/return .*/return price + shipping/' shop.py"
    assert commands() == {f"sed -i {edit}{end}", f"sed {edit} > /tmp/shop.py{end}"}
    messages.append({"role": "tool", "content": ""})
    if last is not None:
        assert next_message({"messages": messages, "tools": tools}, drawn)["content"] == last


def test_the_teacher_answers_a_request_without_tools() -> None:
    message = load("teacher").next_message({"messages": []}, random.Random(0))
    assert message == {"role": "assistant", "content": "I have no shell."}


def test_an_attempt_sees_its_own_repository_alone() -> None:
    for name in ("ltrain.toml", "codex.toml", "gpu.toml"):
        recipe = Recipe.load(FOLDER / name)
        assert recipe.rollout is not None
        sandbox = SandboxSettings.from_section(recipe.rollout, FOLDER)
        assert sandbox is not None
        assert sandbox.workspace_of({"id": "val-3"}) == FOLDER / "repositories" / "val-3"
        inside = [path for path in sandbox.visible if FOLDER in path.resolve().parents]
        assert {path.name for path in inside} == {"solve.sh", "config"}
