"""`ltrain init` on captures of real frameworks: each becomes tasks, an agent and a reward."""

import ast
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp
from tests.transforms.test_fixtures import requests

from ltrain_collector.store import Store
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.starter import take_survey, write_starter

CAPTURES = {
    "langchain__openinference-0.1.80": ("ChatOpenAI(model=llm.model", 6, 2),
    "langgraph__openinference-0.1.80-genai": ("ChatOpenAI(model=llm.model", 3, 3),
    "openai-agents__otel-genai-1.3b0": ("OpenAIChatCompletionsModel(llm.model", 5, 3),
    "openai__otel-genai-openai-1.3b0": ("OpenAI(base_url=llm.base_url", 11, 2),
    "pydantic-ai__builtin-2.68.0": ("OpenAIChatModel(llm.model", 3, 2),
}
"""By capture: the line that makes the model, the tasks, and the stored results that differ."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", CAPTURES)
def test_a_capture_becomes_a_training(store: Store, tmp_path: Path, name: str) -> None:
    for request in requests(f"{name}.otlp.json", False):
        insert_otlp(store, request)
    model_line, tasks, results = CAPTURES[name]
    lines = write_starter(take_survey(store), tmp_path / "new")
    recipe = Recipe.load(tmp_path / "new" / "ltrain.toml").rollout
    assert recipe is not None and recipe.validation is not None
    trained, held_out = (
        read_lines(tmp_path / "new" / file) for file in (recipe.tasks, recipe.validation)
    )
    assert 0 < len(held_out) <= len(trained) and len(trained) + len(held_out) == tasks
    assert recipe.tasks_per_wave == len(trained)
    assert not {task["id"] for task in trained} & {task["id"] for task in held_out}
    code = (tmp_path / "new" / "agent.py").read_text()
    assert model_line in code and code.count("FILL IN") == 1
    assert ast.parse(code)
    reward = runpy.run_path(str(tmp_path / "new" / "reward.py"))
    assert len(reward["STORED"]) == results
    assert reward["score"](trained[0], "an answer") == 1.0
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "new").iterdir())
    assert [line for line in lines if line.startswith("Missing")] == [
        "Missing: your agent in agent.py: the place is marked with FILL IN.",
        "Missing: your reward in reward.py: the place is marked with FILL IN.",
    ]


def test_the_root_span_names_the_input_of_a_graph(store: Store, tmp_path: Path) -> None:
    for request in requests("langgraph__openinference-0.1.80-genai.otlp.json", False):
        insert_otlp(store, request)
    survey = take_survey(store)
    inputs = sorted(task["input"] for task in (*survey.tasks, *survey.validation))
    assert inputs == ["broken please", "twice please", "weather please"]


def test_without_recorded_content_a_skeleton_is_written(store: Store, tmp_path: Path) -> None:
    for request in requests("openai__otel-genai-openai-1.3b0-nocontent.otlp.json", False):
        insert_otlp(store, request)
    lines = write_starter(take_survey(store), tmp_path / "new")
    assert not (tmp_path / "new" / "tasks.jsonl").exists()
    assert "STORED" not in (tmp_path / "new" / "reward.py").read_text()
    assert any("12 without recorded content). Content is off" in line for line in lines)


def test_the_judge_of_the_recipe_is_a_choice(store: Store, tmp_path: Path) -> None:
    for request in requests("pydantic-ai__builtin-2.68.0.otlp.json", False):
        insert_otlp(store, request)
    write_starter(take_survey(store), tmp_path / "new")
    path = tmp_path / "new" / "ltrain.toml"
    text = path.read_text()
    judge = text[text.index("# [[reward]]") : text.index("\n\n[[reward]] # 1 of 3")]
    path.write_text(
        text.replace(judge, judge.replace("# ", "").replace(" the variable", " # the variable"))
    )
    assert [reward.use for reward in Recipe.load(path).reward] == [None, "judge", "tool-failed"]
