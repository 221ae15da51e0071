"""What traces tell of the program: its function, its script, its Python, its model's family."""

import asyncio
import os
import re
import runpy
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.transforms.starter.test_conversations import insert_calls, message

from ltrain_collector.store import Store
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.starter import find_family, take_survey, write_starter
from ltrain_transforms.starter.model_family import MODEL_FAMILIES
from ltrain_transforms.starter.recipe_text import recipe_text
from ltrain_transforms.starter.survey import Survey

CALLS = [(message("user", "one"), "1"), (message("user", "two"), "2")]
DESK = """
import os

def answer(question, retries=2):
    return f"{question} {os.environ['OPENAI_MODEL']}"

async def later(question):
    return question

def two(question, tool):
    return question
"""
LLM = SimpleNamespace(base_url="http://127.0.0.1:9/v1", api_key="k", model="p")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the module of a recorded function."""
    sys.modules.pop("agent", None)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(sys, "path", sys.path[:])
    path = tmp_path / "shop" / "recorded_desk.py"
    path.parent.mkdir()
    path.write_text(DESK)
    return path


def write(store: Store, folder: Path, file: str = "agent") -> tuple[Recipe, Any]:
    write_starter(take_survey(store), folder)
    return Recipe.load(folder / "ltrain.toml"), runpy.run_path(str(folder / f"{file}.py"))["solve"]


def test_a_recorded_function_is_called(store: Store, tmp_path: Path, desk: Path) -> None:
    code = {"code__file__path": str(desk), "code__function__name": "shop.recorded_desk.answer"}
    insert_calls(store, CALLS, None, **code)
    recipe, solve = write(store, tmp_path / "new")
    assert recipe.rollout is not None and recipe.rollout.concurrency == 1
    assert solve({"input": "one"}, LLM) == "one p"
    assert os.environ["OPENAI_BASE_URL"] == LLM.base_url


def test_a_recorded_coroutine_function_is_awaited(store: Store, tmp_path: Path, desk: Path) -> None:
    insert_calls(store, CALLS, code__filepath=str(desk), code__function="later")
    _, solve = write(store, tmp_path / "new")
    assert asyncio.run(solve({"input": "one"}, LLM)) == "one"


def test_a_function_of_the_script_is_called_by_its_name(
    store: Store, tmp_path: Path, desk: Path
) -> None:
    script = desk.rename(desk.with_name("agent.py"))
    insert_calls(store, CALLS, {"process.command": str(script)}, traceloop__entity__name="answer")
    recipe, solve = write(store, tmp_path / "new", "solver")
    assert recipe.rollout is not None and recipe.rollout.agent == "solver:solve"
    assert solve({"input": "two"}, LLM) == "two p"
    assert sys.modules.pop("agent").__file__ == str(script)


@pytest.mark.parametrize("name", ["two", "absent", "class", "answer; x", ""])
def test_other_functions_are_left_to_the_user(
    store: Store, tmp_path: Path, desk: Path, name: str
) -> None:
    insert_calls(
        store, CALLS, {"process.command": str(desk)}, code__filepath=str(desk), code__function=name
    )
    _, solve = write(store, tmp_path / "new")
    with pytest.raises(NotImplementedError, match="FILL IN"):
        solve({"input": "one"}, LLM)
    assert f'# The traces are of "{desk}"' in (tmp_path / "new" / "agent.py").read_text()


@pytest.mark.parametrize("has_ltrain", [True, False])
def test_the_environment_of_the_traces_is_in_the_recipe(
    store: Store, tmp_path: Path, has_ltrain: bool
) -> None:
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    if has_ltrain:
        site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
        (site / "ltrain-0.1.0.dist-info").mkdir(parents=True)
    insert_calls(store, CALLS, {"process.executable.path": str(python)})
    lines = write_starter(take_survey(store), tmp_path / "new")
    recipe = Recipe.load(tmp_path / "new" / "ltrain.toml")
    assert recipe.rollout is not None
    assert recipe.rollout.python == (str(python) if has_ltrain else None)
    sentence = f"The agent runs with {python}" if has_ltrain else "Missing: ltrain in"
    assert any(line.startswith(sentence) for line in lines)


def test_the_family_of_the_model_has_a_parser_and_a_switch_for_thinking(
    store: Store, tmp_path: Path
) -> None:
    insert_calls(store, CALLS, gen_ai__tool__definitions='[{"type": "function", "name": "f"}]')
    write_starter(take_survey(store), tmp_path / "named")
    serve = Recipe.load(tmp_path / "named" / "ltrain.toml").serve
    assert serve.tool_parser == "hermes"
    assert serve.vllm == ("--default-chat-template-kwargs", '{"enable_thinking": false}')
    model = tmp_path / "my-model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    lines = write_starter(take_survey(store), tmp_path / "given", model)
    recipe = Recipe.load(tmp_path / "given" / "ltrain.toml")
    assert (recipe.serve.tool_parser, recipe.serve.vllm) == ("llama3_json", ())
    assert recipe.policy[0].model == str(model)
    assert lines[-2] == f"Next: ltrain check {tmp_path}/given/ltrain.toml"


@pytest.mark.parametrize(
    ("name", "parser"),
    [
        ("Qwen/Qwen3-Coder-30B", "qwen3_xml"),
        ("qwen2.5:7b", "hermes"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3_json"),
        ("Ministral-8B", "mistral"),
        ("gpt-5", None),
    ],
)
def test_names_of_models_have_families(name: str, parser: str | None) -> None:
    family = find_family([name])
    assert (family.tool_parser if family else None) == parser


def test_every_parser_is_vllms() -> None:
    environment = Path(sys.prefix).parent / ".venv-vllm"
    [registry] = environment.glob("lib/python*/site-packages/vllm/tool_parsers/__init__.py")
    names = set(re.findall(r'^    "([\w-]+)": \(', registry.read_text(), re.MULTILINE))
    assert {family.tool_parser for family in MODEL_FAMILIES} <= names


@pytest.mark.parametrize(
    ("agents", "trained"), [(["main", "utility-1"], ["main"]), (["main"], None), (["a", "b"], None)]
)
def test_a_closed_clients_main_agent_is_trained_alone(
    agents: list[str], trained: list[str] | None
) -> None:
    survey = Survey(mode="prod", run=None, execution="session", agents=agents)
    recipe = tomllib.loads(recipe_text(survey, "agent:solve", None))
    assert recipe["policy"][0].get("agents") == trained
