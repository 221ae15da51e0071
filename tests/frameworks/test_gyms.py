"""Environments of other packages as rollouts: their tasks, their calls and their scores."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from tests.frameworks import gym_stack
from tests.frameworks.gym_stack import GYMS, RECIPE, Stack, running_stack, task_of
from tests.model_files import write_model_files

from ltrain_train.environment_package import BadExport, write_package
from ltrain_train.evaluation.plan import EvaluationOptions
from ltrain_train.evaluation.plan import make_plan as evaluation_plan
from ltrain_train.policy import Policies
from ltrain_train.rollout import EnvironmentFailed, load_tasks
from ltrain_train.runs import Plan
from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe import Recipe

PYTHON = gym_stack.python_of("gyms")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack")) as made:
        yield made


def plan_of(environment: str, folder: Path = GYMS, more: str = "") -> Plan:
    """Return the plan of a recipe with an environment of these packages."""
    return gym_stack.plan_of(environment, PYTHON, folder, more)


VERIFIERS = """
[rollout.options]
id = "sums"
[rollout.options.solver.harness]
id = "sums"
[rollout.options.critic.harness]
id = "sums"
"""


def test_an_episode_of_verifiers_is_an_attempt_with_its_own_key(stack: Stack) -> None:
    plan = plan_of("verifiers:sums", more=VERIFIERS)
    assert plan.recipe.policy[0].agents == ("solver",), "the critic is not trained"
    assert plan.rollout.validation is not None
    tasks, held_out = (
        load_tasks(Path(file)) for file in (plan.rollout.tasks, plan.rollout.validation)
    )
    assert (len(tasks) + len(held_out), len(held_out) > 0) == (8, True)
    results = stack.play(plan, 4)
    assert [(each.outcome, each.reason) for each in results] == [("ok", "")] * 4
    numbers = {task.id: task.further_fields["environment"]["data"]["idx"] for task in tasks}
    for each in results:
        right = float(numbers[task_of(each)] % 2)
        letters = float(len(f"It is {numbers[task_of(each)] + 2}.")) if right else 8.0
        assert each.rewards == {
            "reward": 0.75 * right + 0.25,
            **{"right": right, "used_tool": 1.0, "letters": letters},
        }
    rows = stack.calls(plan, 16)
    assert rows["agent"].to_list() == ["solver", "solver", "critic", "critic"] * 4
    prompts = {task.id: task.input for task in tasks}
    for each in results:
        own = rows.filter(pl.col("execution_id").str.starts_with(str(each.identity.rollout)))
        assert len(own) == 4
        assert all(prompts[task_of(each)] in str(text) for text in own["input"])


OTHERS = {
    "reasoning-gym:chain_sum": ("[rollout.options]\nsize = 40", 1, {"score": 0.0}),
    "gymnasium:FrozenLake-v1": (
        "[rollout.options]\nepisodes = 4\ninstruction = '[[1; 1; 2; 1; 2; 2]]'\n"
        "make = { is_slippery = false }",
        6,
        {"return": 1.0, "steps": 6.0},
    ),
    "skyrl-gym:gsm8k_multi_turn": (
        "[rollout.options]\nfile = 'rows.jsonl'",
        None,
        {"return": 1.0, "steps": 1.0},
    ),
    "inspect:arith.py@arith": ("", 2, {"includes": 1.0, "model_graded_fact": 1.0}),
}
"""By environment: its options, the calls of an attempt, and the scores of one."""


@pytest.mark.parametrize("environment", OTHERS)
def test_an_attempt_has_the_scores_and_the_calls_of_its_environment(
    environment: str, stack: Stack
) -> None:
    more, count, scores = OTHERS[environment]
    plan = plan_of(environment, more=more)
    results = stack.play(plan, 1)
    assert [(each.outcome, each.reason) for each in results] == [("ok", "")]
    (result,) = results
    if count is None:
        count = int(result.rewards["steps"])
        scores = {"return": result.rewards["return"], "steps": float(count)}
    assert {name: result.rewards[name] for name in scores} == scores
    rows = stack.calls(plan, count)
    assert len(rows) == count
    if environment.startswith("inspect"):
        assert rows["agent"].to_list() == ["agent", "grader"]
        assert plan.recipe.policy[0].agents == ("agent",)


def test_own_environment_and_its_limits(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    plan = plan_of("own:Endless", more="max_tasks = 20\nheld_out_share = 0.5")
    assert "10 of the tasks that own:Endless lists have the id of an earlier one" in caplog.text
    assert plan.rollout.validation is not None
    files = (plan.rollout.tasks, plan.rollout.validation)
    tasks, held_out = (load_tasks(Path(file)) for file in files)
    assert len(tasks) + len(held_out) == 10, "each id was there twice"
    (result,) = stack.play(plan, 1)
    assert result.rewards == {"own": 1.0, "reward": 1.0}
    again = plan_of("own:Endless", more="max_tasks = 30\nheld_out_share = 0.5")
    known = {task.id for task in load_tasks(Path(again.rollout.tasks))}
    assert {task.id for task in tasks} <= known, "a task stays on its side"


AGENT = """
from openai import AsyncOpenAI

async def solve(task, llm):
    client = AsyncOpenAI(base_url=llm.base_url, api_key=llm.api_key)
    messages = [{"role": "user", "content": task["input"]}]
    answer = await client.chat.completions.create(model=llm.model, messages=messages)
    return {"text": answer.choices[0].message.content}

def judge(task, result):
    return {"reward": float(task["answer"] in result["text"]), "length": len(result["text"])}
"""
OWN_RECIPE = """
[source]
run = "own sums"
[rollout]
tasks = "tasks.jsonl"
agent = "plain:solve"
reward = "plain:judge"
[[policy]]
name = "policy"
[[reward]]
name = "answer"
evaluation = "reward"
"""


def test_a_recipe_becomes_an_environment_of_verifiers(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(AGENT)
    (tmp_path / "ltrain.toml").write_text(OWN_RECIPE)
    rows = [{"id": str(n), "input": f"{n} [[It is {n}.]]", "answer": str(n % 3)} for n in range(6)]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    out = tmp_path / "package"
    assert write_package(tmp_path / "ltrain.toml", out) == "own_sums"
    assert not (out / "own_sums" / "agent" / "package").exists()
    more = '[rollout.options.agent.harness]\nid = "own_sums"'
    plan = plan_of("verifiers:own_sums", out, more)
    results = stack.play(plan, 5)
    assert [(each.outcome, each.reason) for each in results] == [("ok", "")] * len(results)
    for each in results:
        (fields,) = (
            task.further_fields["environment"]["data"]["fields"]
            for task in load_tasks(Path(plan.rollout.tasks))
            if task.id == task_of(each)
        )
        assert each.rewards == {"reward": float(int(fields["id"]) < 3), "length": 8.0}
    with pytest.raises(BadExport, match=r"exists\. Name a new folder"):
        write_package(tmp_path / "ltrain.toml", out)
    (tmp_path / "ltrain.toml").write_text(OWN_RECIPE.replace("plain:judge", "python judge.py"))
    with pytest.raises(BadExport, match="Name a function, as in scores:reward"):
        write_package(tmp_path / "ltrain.toml", tmp_path / "other")


PARTS = {
    "policy": [{"name": "policy"}],
    "reward": [{"name": "answer", "evaluation": "reward"}],
}
FAULTS = {
    "verifiers:nothing": ("", r"verifiers cannot load 'nothing': taskset 'nothing' not found"),
    "verifiers:own": ("", r"verifiers cannot load 'own': .* defines no `__all__`"),
    "verifiers:sums": (
        VERIFIERS + "[rollout.options.retries]\nmax_retries = 2",
        r"Remove `retries` from \[rollout\.options\]: ltrain tries a rollout again",
    ),
    "reasoning-gym:chain": ("", r"The environment 'reasoning-gym:chain' refuses its options"),
    "own:Endles": ("", r"There is no environment 'own:Endles': .*Choose a package from: gymnasium"),
    "inspect:nowhere.py@arith": ("", r"There is no file nowhere\.py\. Write FILE\.py@TASK"),
    "openenv:http://127.0.0.1:1": ("", r"needs the package openenv, and its import failed"),
}


def test_a_runtime_without_a_login_is_reported(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    more = VERIFIERS + '[rollout.options.solver.runtime]\ntype = "prime"'
    with pytest.raises(EnvironmentFailed, match="The runtime `prime` needs a login"):
        plan_of("verifiers:sums", more=more)


@pytest.mark.parametrize("environment", FAULTS)
def test_an_environment_that_cannot_be_used_is_named(environment: str, stack: Stack) -> None:
    more, message = FAULTS[environment]
    with pytest.raises(EnvironmentFailed, match=message):
        plan_of(environment, more=more)


def test_a_recipe_has_an_environment_or_its_parts() -> None:
    with pytest.raises(BadRecipe, match=r"`remote = true` other machines run it"):
        plan_of("own:Endless", more="remote = true")
    with pytest.raises(BadRecipe, match=r"Name a JSONL file in `tasks`, or an `environment`"):
        Recipe.from_sections({"rollout": {"agent": "a:b", "reward": "a:c"}, **PARTS})
    named = '[rollout.options.agent.client]\napi_key_var = "JUDGE_KEY"\napi_key = "sk-1"'
    with pytest.raises(BadRecipe, match="`api_key` has a secret, and recipes are stored"):
        plan_of("own:Endless", more=named)
    with pytest.raises(BadRecipe, match=r"`max_tasks` is of an environment"):
        fields = {"tasks": "t.jsonl", "agent": "a:b", "reward": "a:c", "max_tasks": 3}
        Recipe.from_sections({"rollout": fields, **PARTS})


def test_an_evaluation_is_of_the_held_out_tasks(stack: Stack, tmp_path: Path) -> None:
    text = RECIPE.format(
        run="eval", environment="own:Endless", python=PYTHON, more="max_tasks = 20\n"
    )
    (tmp_path / "own.py").write_text((GYMS / "own.py").read_text())
    (tmp_path / "ltrain.toml").write_text(text)
    policies = Policies(stack.home)
    write_model_files(tmp_path / "model", {"weight": (2, 2)})
    policies.register("policy", tmp_path / "model")
    options = EvaluationOptions(
        policies=["policy@0"], recipe=tmp_path / "ltrain.toml", rollout={}, samples=None
    )
    plan = evaluation_plan(options, stack.home)
    assert 0 < len(plan.tasks) < 10
    assert plan.program.agent == "ltrain_episodes.environments:attempt"


def test_a_reward_that_is_no_number_is_an_error_of_the_attempt(stack: Stack) -> None:
    plan = plan_of("own:Endless", more="max_tasks = 4\n[rollout.options]\nreward = 'nan'")
    (result,) = stack.play(plan, 1)
    assert result.outcome == "error"
    assert "The environment returned nan as 'own'. Return a finite number." in result.reason


SKYRL = """
import json
import subprocess
import skyrl_gym
from ltrain_episodes import MathAgent, MathEnv
from ltrain_episodes.environments import text_env

skyrl_gym.register("math", entry_point=text_env(MathAgent, MathEnv))
env = skyrl_gym.make("math", env_config=None, extras={"input": "What is 2 + 2?", "answer": "4"})
messages, _ = env.init([])
played = [messages[-1]["content"]]
for answer in (r"\\boxed{5}", r"\\boxed{4}"):
    output = env.step(answer)
    roles = [each["role"] for each in output["observations"]]
    played.append([roles, output["reward"], output["done"]])
env.close()

make = text_env(lambda: MathAgent(accumulate_thinking=False), MathEnv)
forgetful = make(extras={"input": "1 + 1?", "answer": "2"})
forgetful.init([])
try:
    forgetful.step(r"<think>First.</think>\\boxed{3}")
except ValueError as error:
    played.append(str(error))
print(json.dumps(played))
"""


def test_skyrl_plays_an_agent_and_its_environment() -> None:
    done = subprocess.run([PYTHON, "-c", SKYRL], capture_output=True, text=True, check=True)
    problem, wrong, right, refusal = json.loads(done.stdout.splitlines()[-1])
    assert "What is 2 + 2?" in problem
    assert (wrong, right) == ([["user"], 0.0, False], [[], 1.0, True])
    assert refusal.startswith("MathAgent changed earlier messages")
