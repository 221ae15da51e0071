"""The multi-domain example: tasks of three examples, each with its own agent and reward."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ltrain_train.policy import renders_tools
from ltrain_train.rollout import load_tasks
from ltrain_train.runs.plan import find_chat_template
from ltrain_transforms.recipe import Recipe

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDER = EXAMPLES / "multi_domain"
DOMAINS = ("text_to_sql", "rag", "calculator")


PYTHON = EXAMPLES.parent / ".venv-examples" / "bin" / "python"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(PYTHON), *arguments]
    return subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)


def test_the_tasks_are_those_of_the_examples(tmp_path: Path) -> None:
    code = "import sys, pathlib, tasks; tasks.HERE = pathlib.Path(sys.argv[1]); tasks.main()"
    assert python("-c", code, str(tmp_path)).stderr == ""
    for name in ("train", "val"):
        assert (tmp_path / f"{name}.jsonl").read_text() == (FOLDER / f"{name}.jsonl").read_text()
        own = load_tasks(FOLDER / f"{name}.jsonl")
        assert set(Counter(task.domain for task in own)) == set(DOMAINS)
        for domain in DOMAINS:
            of_example = {
                f"{domain}/{task.id}": task.model_dump(exclude={"id", "domain"})
                for task in load_tasks(EXAMPLES / domain / f"{name}.jsonl")
            }
            for task in own:
                if task.domain == domain:
                    assert task.model_dump(exclude={"id", "domain"}) == of_example[task.id]
    assert Counter(task.domain for task in own) == dict.fromkeys(DOMAINS, 64)


@pytest.mark.parametrize(
    ("domain", "plan", "answer", "agents"),
    [
        ("rag", "retrieve(query=x); <answer>Oslo</answer>", {"queries": ["x"]}, {"rag"}),
        ("calculator", "calculate(expression=1+1); ### ANSWER: 2 ###", {"answer": "2"}, {"solver"}),
    ],
)
def test_the_domain_chooses_the_agent(
    run: Run, domain: str, plan: str, answer: dict[str, object], agents: set[str]
) -> None:
    result = run("examples", str(FOLDER / "agent"), domain, f"A question. [[{plan}]]")
    assert (result.exit_code, result.stderr) == (0, "")
    returned = json.loads(result.stdout)
    assert {key: returned[key] for key in answer} == answer
    assert {call["agent"] for call in result.calls_of_kind("llm")} == agents


def test_the_reward_is_that_of_the_domain() -> None:
    cases = [
        ({"domain": "calculator", "result": "2"}, {"answer": "2", "expressions": [], "failed": 0}),
        (
            {"domain": "rag", "answer": "Oslo", "answer_aliases": []},
            {"output": "<answer>Rome</answer>", "queries": []},
        ),
    ]
    code = "import json, sys, reward; print([reward.score(*c) for c in json.loads(sys.argv[1])])"
    done = python("-c", code, json.dumps(cases))
    assert (done.stdout, done.stderr) == ("[{'reward': 1.0}, {'reward': 0.1}]\n", "")


def test_an_unknown_domain_is_refused() -> None:
    code = "import siblings; siblings.load('poetry', 'agent')"
    assert python("-c", code).stderr.splitlines()[-1] == (
        "ValueError: Unknown domain 'poetry'. Choose from: text_to_sql, rag, calculator."
    )
    usage = "usage: python agent.py {text_to_sql,rag,calculator} QUESTION\n"
    assert python("agent.py", "poetry", "A question").stderr == usage


def test_the_recipe_trains_the_agents_of_all_examples_and_has_their_tools() -> None:
    recipe = Recipe.load(FOLDER / "ltrain.toml")
    assert recipe.rollout is not None
    assert recipe.rollout.domains == dict.fromkeys(DOMAINS, 1)
    agents = [
        agent
        for domain in DOMAINS
        for agent in Recipe.load(EXAMPLES / domain / "ltrain.toml").policy[0].agents
    ]
    assert list(recipe.policy[0].agents) == agents
    template = find_chat_template(recipe.serve, FOLDER)
    assert template is not None and renders_tools(FOLDER, str(template))
