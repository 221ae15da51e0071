"""A change selects the frameworks and examples whose files it touches; in doubt, all."""

import os
import subprocess
from pathlib import Path

import pytest
from tests import selection as selection_module
from tests.selection import ALWAYS, OTHERS, Selection, changed_files, framework_tests, spread

OTEL144 = frozenset({"otel144"})


def test_each_test_of_frameworks_names_its_environment() -> None:
    assert [name for name, environments in framework_tests().items() if not environments] == []


def test_litellm_calls_the_gateway_if_the_gateway_changes() -> None:
    environments = framework_tests()["gateway"]
    assert environments == {"openai2"}
    change = Selection(frozenset({"train/ltrain_train/gateway/app.py"}))
    assert change.has_framework("gateway", environments)
    assert list(change.environments()) == [ALWAYS, "openai2"]


@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        ("README.md", False),
        ("train/ltrain_train/loop/online.py", False),
        ("train/ltrain_train/learner/masks.py", True),
        ("train/ltrain_train/gateway/serving/applied_constraints.py", True),
        ("tests/frameworks/agents/training_ways.py", True),
        ("tests/frameworks/ways.py", True),
        ("transforms/ltrain_transforms/dialects/openinference.py", True),
        ("setup/vllm.lock", True),
        ("setup/openai2.lock", True),
        ("setup/otel144.lock", False),
    ],
)
def test_all_ways_are_trained_if_masks_or_their_agents_change(file: str, chosen: bool) -> None:
    environments = framework_tests()["training"]
    assert environments == {ALWAYS, "openai2"}
    assert Selection(frozenset({file})).has_framework("training", environments) is chosen


@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        ("README.md", False),
        ("train/ltrain_train/gateway/conversations/chains.py", True),
        ("train/ltrain_train/gateway/client.py", False),
        ("collector/ltrain_collector/client_events.py", True),
        ("setup/clients/package-lock.json", True),
        ("setup/pyclients.lock", True),
        ("tests/frameworks/clients.py", True),
    ],
)
def test_coding_agents_run_if_the_gateway_reads_them_otherwise(file: str, chosen: bool) -> None:
    environments = framework_tests()["clients"]
    assert Selection(frozenset({file})).has_framework("clients", environments) is chosen


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
    for file in ("examples/rag/agent.py", "tests/examples/test_rag.py"):
        change = Selection(frozenset({file}))
        assert change.has_example("rag") and change.trains_example("rag")
        assert not change.has_example("text_to_sql")


def test_a_change_of_what_reads_traces_tests_all_examples_and_trains_one() -> None:
    change = Selection(frozenset({"transforms/ltrain_transforms/calls/merge.py"}))
    assert change.has_example("rag")
    assert [each for each in ("rag", "calculator") if change.trains_example(each)] == ["calculator"]


def test_all_are_chosen_if_the_change_is_not_known() -> None:
    unknown = Selection(None)
    assert list(unknown.environments()) == [ALWAYS, *OTHERS]
    assert unknown.has_example("rag")


def test_sampled_cases_are_at_even_distances() -> None:
    assert spread("abcdefgh", 3) == ["a", "c", "f"]
    assert spread("ab", 3) == ["a", "b"]


def git(folder: Path, *arguments: str, day: int = 2) -> None:
    date = f"2026-01-{day:02}T00:00:00Z"
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
        cwd=folder,
        env={**os.environ, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date},
        check=True,
        capture_output=True,
    )


def commit(folder: Path, name: str, *, day: int = 2) -> None:
    (folder / name).write_text(name)
    git(folder, "add", ".")
    git(folder, "commit", "-m", name, day=day)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(selection_module, "ROOT", tmp_path)
    monkeypatch.delenv("LTRAIN_TEST_BASE", raising=False)
    return tmp_path


def test_a_change_is_what_differs_from_the_merge_base(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changed_files() is None  # no repository
    git(repository, "init", "-b", "main")
    commit(repository, "one")
    git(repository, "checkout", "-b", "change")
    commit(repository, "two")
    (repository / "one").write_text("changed")
    (repository / "three").write_text("3")
    assert changed_files() == frozenset({"one", "two", "three"})
    monkeypatch.setenv("LTRAIN_TEST_BASE", "0" * 40)
    assert changed_files() is None  # the base of a new branch


def test_a_change_on_main_is_the_commits_of_some_hours(repository: Path) -> None:
    git(repository, "init", "-b", "main")
    commit(repository, "one", day=2)
    assert changed_files() is None  # no commit is older
    commit(repository, "two", day=5)
    commit(repository, "three", day=5)
    assert changed_files() == frozenset({"two", "three"})
