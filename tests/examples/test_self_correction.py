"""The self-correction example: problems, public files, rewards, and its agent with a fake model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.examples.example_module import load_module
from tests.frameworks.expected import describe_calls

from ltrain_episodes import ChatModel, Message, run_episode
from ltrain_train.rollout import load_tasks
from ltrain_transforms.datasets import derive
from ltrain_transforms.recipe import Recipe

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

FOLDER = Path(__file__).parents[2] / "examples" / "self_correction"
ROW = {"problem": "One and one?", "answer": "2", "solution": "1 + 1 = 2"}


load = partial(load_module, FOLDER)


tasks, agent, reward = load("tasks"), load("agent"), load("reward")


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def test_the_task_files_match_the_templates(tmp_path: Path) -> None:
    for name, made in zip(("train", "val"), tasks.problems(), strict=True):
        tasks.write(tmp_path / name, made)
        assert (tmp_path / name).read_text() == (FOLDER / f"{name}.jsonl").read_text()
        domains = [task.domain for task in load_tasks(FOLDER / f"{name}.jsonl")]
        count = {"train": 64, "val": 96}[name]
        assert {domain: domains.count(domain) for domain in domains} == {
            "three": count,
            "four": count,
        }


def test_a_number_of_a_held_out_problem_is_in_no_other_problem_and_no_example() -> None:
    worked = {number for question, *_ in agent.WORKED for number in numbers(question)}
    assert set(tasks.WORKED) == worked
    for seed in range(3):
        train, val = (
            {number for problem in made for number in numbers(problem.input)}
            for made in tasks.problems(seed)
        )
        assert (len(train), len(val)) == (38, 38)
        assert (train & val, (train | val) & worked) == (set(), set())


def test_the_answer_is_the_largest_of_different_numbers() -> None:
    for problem in [*tasks.problems()[0], *tasks.problems()[1]]:
        drawn = numbers(problem.input)
        assert (len(set(drawn)), int(problem.answer)) == (tasks.SIZES[problem.domain], max(drawn))


def test_public_files_become_tasks(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "answer": 2.5, "solution": ""}]
    (tmp_path / "deep.json").write_text(json.dumps(rows, indent=2))
    (tmp_path / "gsm.jsonl").write_text(
        json.dumps({"question": "Two and two?", "answer": "2 + 2 = 4\n#### 4"}) + "\n\n"
    )
    made = tasks.read_problems(tmp_path / "deep.json") + tasks.read_problems(tmp_path / "gsm.jsonl")
    tasks.write(tmp_path / "tasks.jsonl", made)
    read = [task.model_dump() for task in load_tasks(tmp_path / "tasks.jsonl")]
    assert [tuple(task[key] for key in ("id", "input", "answer", "solution")) for task in read] == [
        ("deep-1", "One and one?", "2", "1 + 1 = 2"),
        ("deep-2", "One and one?", "2.5", ""),
        ("gsm-1", "Two and two?", "4", "2 + 2 = 4"),
    ]
    assert [task["domain"] for task in read] == ["deepscaler", "deepscaler", "gsm8k"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[\n{"problem": ', r"a\.json, line 2: not JSON .* DeepScaleR has an array"),
        ("[5\n]", r"line 1: 5 is no object"),
        ("[" + json.dumps(ROW), r"line 1: not JSON"),
        ('[\n\n{"problem": "x"}]', r"line 3: the field 'answer' is missing\. DeepScaleR has"),
        (json.dumps([ROW, {**ROW, "answer": True}]), r"line 1: the field 'answer' is True"),
        (json.dumps([{**ROW, "problem": " "}]), r"line 1: the field 'problem' is ' '"),
        (json.dumps([{**ROW, "solution": None}]), r"line 1: the field 'solution' is None"),
        ('{"question": "x", "answer": "4"}', r"line 1: the field 'answer' has no '#### NUMBER'"),
        ('{"question": "x", "answer": "#### 4"}\n{', r"line 2: not JSON"),
        ('\n{"question": 4, "answer": "#### 4"}', r"line 2: the field 'question' is 4\. GSM8K has"),
        ("[]", r"a\.json has no problem"),
        ("", r"a\.json has no problem"),
        (None, r"Cannot read .*a\.json: No such file"),
    ],
)
def test_a_bad_file_is_refused_with_its_line_and_field(
    text: str | None, sentence: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    with pytest.raises(tasks.BadData, match=sentence):
        tasks.read_problems(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("steps", "value", "first", "corrected"),
    [(1, 1.0, 1.0, 0.0), (2, 1.0, 0.0, 1.0), (2, 0.0, 0.0, 0.0)],
)
def test_the_reward_comes_from_the_first_answer_or_from_the_correction(
    steps: int, value: float, first: float, corrected: float
) -> None:
    result = {"reward": value, "steps": steps}
    expected = {"step": value, "first": first, "corrected": corrected}
    assert reward.score({}, result) == expected


def scripted_model(answers: Sequence[str]) -> ChatModel:
    boxes = iter([rf"\boxed{{{answer}}}" for answer in answers])
    return lambda _: next(boxes)


def test_the_worked_examples_are_what_the_agent_and_its_environment_say() -> None:
    turns: list[Message] = []
    for question, *answers in agent.WORKED:
        scripted = agent.ShortMathAgent()
        environment = agent.make_environment({"input": question, "answer": answers[-1]})
        episode = run_episode(scripted, environment, scripted_model(answers))
        assert (episode.reward, episode.steps) == (1.0, len(answers))
        turns += scripted.chat_completions
    assert agent.worked_examples() == turns


@pytest.mark.parametrize(
    ("name", "named"),
    [("ltrain", "ShortMathAgent"), ("no_discount", "ShortMathAgent"), ("gpu", "MathAgent")],
)
def test_the_recipes_are_valid(name: str, named: str) -> None:
    recipe = Recipe.load(FOLDER / f"{name}.toml")
    assert recipe.rollout is not None and recipe.rollout.agent_sees == ("input", "answer")
    assert recipe.policy[0].agents == (named,)
    assert (recipe.reward[0].evaluation, recipe.reward[0].from_) == ("step", "agent")


def test_the_recipes_differ_in_the_discount_alone() -> None:
    ours, others = (
        Recipe.load(FOLDER / f"{name}.toml").model_dump() for name in ("ltrain", "no_discount")
    )
    assert (ours["credit"]["process"].pop("gamma"), others["credit"]["process"].pop("gamma")) == (
        0.5,
        1.0,
    )
    assert ours["source"].pop("run") != others["source"].pop("run")
    assert ours == others


def record(run: Run, *answers: str, rollout: str = "rollout1") -> Any:
    plan = "; ".join(rf"\boxed{{{answer}}}" for answer in answers)
    task = {"input": f"Which number is the largest: 12, 70 or 44? [[{plan}]]", "answer": "70"}
    environ = {
        "OPENAI_MODEL": "self-correction",
        "LTRAIN_ROLLOUT_ID": rollout,
        "LTRAIN_WAVE": "0",
        "LTRAIN_SAMPLE_INDEX": "0",
    }
    result = run("examples", str(FOLDER / "agent"), json.dumps(task), **environ)
    assert (result.exit_code, result.stderr) == (0, "")
    return result


def test_a_run_is_recorded_exactly(run: Run) -> None:
    result = record(run, "44", "70")
    assert json.loads(result.stdout) == {
        "reward": 1.0,
        "rewards": {"ShortMathAgent": 1.0},
        "end": "terminated",
        "steps": 2,
    }
    assert describe_calls(result) == [
        r"ShortMathAgent ok stop 7+5: \boxed{44}",
        r"  ShortMathAgent ok MathEnv(action=\boxed{44}): 44 is not the answer.",
        r"ShortMathAgent ok stop 7+5: \boxed{70}",
        r"  ShortMathAgent ok MathEnv(action=\boxed{70}): null",
    ]
    assert [call["agent"] for call in result.calls_of_kind("agent")] == ["ShortMathAgent"] * 2
    tables = derive(result.spans, Recipe.load(FOLDER / "ltrain.toml")).tables
    steps = [call["call_id"] for call in result.calls_of_kind("tool")]
    assert tables["rewards"].select("call_id", "rule", "source", "value").rows() == [
        (steps[0], "step", "agent", 0.0),
        (steps[1], "step", "agent", 1.0),
    ]
    first, second = (request.body["messages"] for request in result.model_requests)
    assert first[:-1] == agent.worked_examples()
    assert second[: len(first)] == first
    assert [message["content"] for message in second[len(first) :]] == [
        r"\boxed{44}",
        r"44 is not the answer. Put the final answer within \boxed{}.",
    ]
    assert {request.body["temperature"] for request in result.model_requests} == {0}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ltrain", {"first": [0.5], "corrected": [0.0, 0.5], "wrong": [-0.5, -0.5]}),
        ("no_discount", {"first": [1 / 3], "corrected": [1 / 3, 0.5], "wrong": [-2 / 3, -0.5]}),
    ],
)
def test_only_a_discount_prefers_a_right_first_answer(
    run: Run, name: str, expected: dict[str, list[float]]
) -> None:
    record(run, "70", rollout="first")
    record(run, "44", "70", rollout="corrected")
    result = record(run, "44", "12", rollout="wrong")
    tables = derive(result.spans, Recipe.load(FOLDER / f"{name}.toml")).tables
    assert tables["drops"].filter(stage="executions").to_dicts() == []
    advantages: dict[str, list[float]] = {}
    for row in tables["transitions"].sort("t").to_dicts():
        rollout = row["execution_id"].removesuffix(".1")
        advantages.setdefault(rollout, []).append(row["advantage"])
    assert advantages == {rollout: pytest.approx(own) for rollout, own in expected.items()}


SEEDS = (0, 1, 2)


def answered(results: str, seed: int) -> tuple[list[tuple[float, float]], float]:
    """Return right first answers and right corrections before and after training.

    Returns:
        The pairs, and the share of groups without spread.
    """
    figures = json.loads((FOLDER / results / f"seed{seed}.json").read_text())
    (policy,) = figures["policies"].values()
    held_out = [wave["evaluations"] for wave in policy["waves"] if wave["mode"] == "val"]
    pairs = [(each["first"], each["corrected"]) for each in (held_out[0], held_out[-1])]
    return pairs, figures["groups_without_spread"]


@pytest.mark.parametrize(
    ("name", "results"), [("ltrain", "results"), ("no_discount", "results/no_discount")]
)
def test_the_page_tells_right_first_answers_from_corrections(name: str, results: str) -> None:
    page = (FOLDER / "README.md").read_text()
    after = [answered(results, seed)[0][1] for seed in SEEDS]
    columns = zip(*((first, fixed, fixed / (1 - first)) for first, fixed in after), strict=True)
    cells = [f"{name}.toml", *(", ".join(f"{one:.2f}" for one in column) for column in columns)]
    assert f"| {' | '.join(cells)} |" in page
    for seed in SEEDS:
        (first, fixed), _ = answered(results, seed)[0]
        before = [
            "both, before training",
            *(f"{x:.2f}" for x in (first, fixed, fixed / (1 - first))),
        ]
        assert f"| {' | '.join(before)} |" in page
    if name == "ltrain":
        shares = [f"{answered(results, seed)[1]:.2f}" for seed in SEEDS]
        assert f"{shares[0]}, {shares[1]} and {shares[2]} of the groups" in page
