"""A change selects the frameworks and examples whose files it touches; in doubt, all."""

import subprocess
from pathlib import Path

import pytest
from tests import selection as selection_module
from tests.selection import ALWAYS, Selection, changed_files, framework_tests

OTEL144 = frozenset({"otel144"})


def test_each_test_of_frameworks_names_its_environment() -> None:
    assert [name for name, environments in framework_tests().items() if not environments] == []


@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        ("README.md", False),
        ("tests/frameworks/test_dspy.py", True),
        ("tests/frameworks/agents/dspy_agents.py", True),
        ("transforms/ltrain_transforms/dialects/dspy.py", True),
        ("transforms/ltrain_transforms/dialects/openinference.py", True),
        ("instrument/ltrain_instrument/instrumentors/choice.py", True),
        ("setup/otel144.lock", True),
        ("setup/openai2.lock", False),
        ("tests/frameworks/test_crewai.py", False),
    ],
)
def test_a_framework_is_chosen_by_its_files(file: str, chosen: bool) -> None:
    assert Selection(frozenset({file})).has_framework("dspy", OTEL144) is chosen


def test_the_small_environment_and_one_example_are_part_of_every_change() -> None:
    nothing = Selection(frozenset())
    assert list(nothing.environments()) == [ALWAYS]
    assert nothing.has_framework("langgraph", frozenset({ALWAYS}))
    assert [name for name in ("rag", "calculator") if nothing.has_example(name)] == ["calculator"]
    assert Selection(frozenset({"examples/rag/agent.py"})).has_example("rag")


def test_all_are_chosen_if_the_change_is_not_known() -> None:
    unknown = Selection(None)
    assert list(unknown.environments()) == [ALWAYS, "openai2", "otel144"]
    assert unknown.has_example("rag")


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_change_is_what_differs_from_the_merge_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection_module, "ROOT", tmp_path)
    monkeypatch.delenv("LTRAIN_TEST_BASE", raising=False)
    assert changed_files() is None  # no repository
    git(tmp_path, "init", "-b", "main")
    (tmp_path / "one").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    assert changed_files() == frozenset()
    git(tmp_path, "checkout", "-b", "change")
    (tmp_path / "two").write_text("2")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "two")
    (tmp_path / "one").write_text("one")
    (tmp_path / "three").write_text("3")
    assert changed_files() == frozenset({"one", "two", "three"})
    monkeypatch.setenv("LTRAIN_TEST_BASE", "0" * 40)
    assert changed_files() is None  # the base of a new branch
