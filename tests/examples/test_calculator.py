"""The calculator example: problems, Calc-X files, reward, and its AutoGen agent in its environment.

The model is a server of the tests; the calculator of a traced run is the real MCP server.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from tests.examples.example_module import load_module
from tests.frameworks.expected import describe_calls

from ltrain_train.policy import renders_tools
from ltrain_train.rollout import load_tasks
from ltrain_train.runs.plan import find_chat_template
from ltrain_transforms.recipe import Recipe

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run

FOLDER = Path(__file__).parents[2] / "examples" / "calculator"
GADGET = '<gadget id="calculator">{}</gadget>\n<output>1</output>\n'
ROW = {"id": "a", "question": "One and one?", "chain": GADGET.format("1 + 1"), "result": "2"}


load = partial(load_module, FOLDER)


tasks, reward = load("tasks"), load("reward")


def test_the_task_files_match_the_templates(tmp_path: Path) -> None:
    for name, made in zip(("train", "val"), tasks.problems(), strict=True):
        tasks.write(tmp_path / name, made)
        assert (tmp_path / name).read_text() == (FOLDER / f"{name}.jsonl").read_text()
        domains = [task.domain for task in load_tasks(FOLDER / f"{name}.jsonl")]
        assert {domain: domains.count(domain) for domain in domains} == {
            "one_step": {"train": 120, "val": 128}[name],
            "two_step": {"train": 24, "val": 64}[name],
        }


def test_no_name_and_no_number_of_validation_is_in_training() -> None:
    for seed in range(3):
        train, val = (
            {
                word
                for problem in made
                for word in re.findall(r"\w+", problem.input)
                if word.isdigit() or word in tasks.NAMES
            }
            for made in tasks.problems(seed)
        )
        assert (len(train) > 100, len(val) > 100, train & val) == (True, True, set())


def test_each_step_has_the_number_that_python_computes() -> None:
    for problem in [*tasks.problems()[0], *tasks.problems()[1]]:
        steps = re.findall(r">([^<]+)</gadget>\n<output>(\d+)<", problem.chain)
        assert [float(eval(expression)) for expression, _ in steps] == [float(o) for _, o in steps]
        assert problem.result == steps[-1][1]
        assert problem.chain.endswith(f"<result>{problem.result}</result>")


def test_files_of_calc_x_become_tasks(tmp_path: Path) -> None:
    rows = [
        {**ROW, "source_ds": "gsm8k"},
        {**ROW, "id": "b", "chain": GADGET.format("1 + 1") * 2},
        {**ROW, "id": "c", "chain": "", "result": "B"} | {"chain": GADGET.format("1") * 4},
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pl.DataFrame(rows[1:]).write_parquet(tmp_path / "train.parquet")
    made = tasks.read_calc_x(tmp_path / "train.jsonl")
    assert made[1:] == tasks.read_calc_x(tmp_path / "train.parquet")
    tasks.write(tmp_path / "tasks.jsonl", made)
    read = [task.model_dump() for task in load_tasks(tmp_path / "tasks.jsonl")]
    assert [(task["id"], task["domain"], task["source_ds"]) for task in read] == [
        ("a", "one_step", "gsm8k"),
        ("b", "two_step", "train"),
        ("c", "more_steps", "train"),
    ]
    assert (read[0]["input"], read[2]["result"]) == ("One and one?", "B")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", r"calc\.jsonl, line 2: not JSON"),
        ("[1]", r"line 2: \[1\] is no object\. Write one object a line"),
        (
            json.dumps({"id": "b"}),
            r"line 2: the field 'question' is missing\. Calc-X has the texts",
        ),
        (json.dumps({**ROW, "result": 2}), r"line 2: the field 'result' is 2"),
        (json.dumps({**ROW, "chain": None}), r"line 2: the field 'chain' is None"),
        (json.dumps(ROW), r"line 2: the id 'a' occurs twice"),
    ],
)
def test_a_bad_row_is_refused_with_its_line_and_field(
    line: str, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "calc.jsonl"
    file.write_text(json.dumps(ROW) + "\n" + line)
    with pytest.raises(tasks.BadData, match=sentence):
        tasks.read_calc_x(file)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "", r"a\.csv is neither jsonl nor parquet"),
        ("a.jsonl", "", r"a\.jsonl has no problem"),
        ("a.parquet", "x", r"a\.parquet is not a parquet file"),
        ("a.jsonl", None, r"Cannot read .*a\.jsonl: No such file"),
        ("a.parquet", None, r"Cannot read .*a\.parquet: No such file"),
    ],
)
def test_a_bad_file_is_refused(
    name: str, content: str | None, sentence: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(tasks.BadData, match=sentence):
        tasks.read_calc_x(tmp_path / name)


@pytest.mark.parametrize(
    ("answer", "result", "equal"),
    [
        ("864", "864", True),
        ("864.0", "864", True),
        ("864.009", "864", True),
        ("864.02", "864", False),
        ("1001", "1000", False),
        ("$1,234.50", "1234.5", True),
        ("12 apples", "12", True),
        ("0.33", "1/3", True),
        ("0.32", "1/3", False),
        ("0", "0.005", False),
        ("-3", "3", False),
        ("3/0", "3", False),
        ("1e999", "3", False),
        ("B", "B", True),
        ("(B) 12", "B", True),
        ("B) 12", "C", False),
        ("Because", "B", False),
        ("12", "B", False),
        ("x + 1", "X + 1", True),
        ("", "3", False),
        (None, "3", False),
    ],
)
def test_an_answer_is_equal_within_a_hundredth_or_by_its_letter(
    answer: str | None, result: str, equal: bool
) -> None:
    attempt = {"answer": answer, "expressions": ["1"], "failed": 0}
    expected = {"reward": float(equal), "calculated": 1.0}
    assert reward.score({"result": result}, attempt) == expected


def test_a_failed_calculation_and_none_are_not_calculated() -> None:
    for expressions, failed in (([], 0), (["1/0"], 1)):
        result = {"answer": "3", "expressions": expressions, "failed": failed}
        assert reward.score({"result": "3"}, result) == {"reward": 1.0, "calculated": 0.0}


@pytest.mark.parametrize("name", ["ltrain.toml", "gpu.toml"])
def test_the_recipes_are_valid_and_their_model_sees_tools(name: str) -> None:
    recipe = Recipe.load(FOLDER / name)
    assert recipe.rollout is not None and recipe.policy[0].agents == ("solver",)
    template = find_chat_template(recipe.serve, FOLDER)
    assert template is None or renders_tools(FOLDER, str(template))
    assert recipe.serve.tool_parser


def test_a_run_is_recorded_exactly(run: Run) -> None:
    question = (
        "Solve. [[calculate(expression=24*36); calculate(expression=1/0); ### ANSWER: 864 ###]]"
    )
    result = run("examples", str(FOLDER / "agent"), question, OPENAI_MODEL="fake")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {
        "answer": "864",
        "expressions": ['{"expression": "24*36"}', '{"expression": "1/0"}'],
        "failed": 1,
    }
    assert describe_calls(result) == [
        "solver ok tool_calls 7+5: calculate(expression=24*36)",
        "  solver ok calculate(expression=24*36): 864",
        "solver ok tool_calls 7+5: calculate(expression=1/0)",
        "  solver error calculate(expression=1/0): "
        "Error executing tool calculate: division by zero",
        "solver ok stop 7+5: ### ANSWER: 864 ###",
    ]
    assert [call["agent"] for call in result.calls_of_kind("agent")] == ["solver"]
    examples = [(1, "tool.calculate.result", f'"{value}"') for value in (579, 707, 864)]
    assert result.states.select("t", "variable", "value").rows() == [
        (0, "input", json.dumps(question)),
        *examples,
        (2, "tool.calculate.arguments", '{"expression":"24*36"}'),
        (3, "tool.calculate.result", '"864"'),
        (4, "tool.calculate.arguments", '{"expression":"1/0"}'),
        (5, "tool.calculate.result", '"Error executing tool calculate: division by zero"'),
        (6, "solver.output", '"### ANSWER: 864 ###"'),
        (6, "answer", '"### ANSWER: 864 ###"'),
    ]
    assert result.executions["complete"].to_list() == [True]
    first = result.model_requests[0].body
    assert [message["role"] for message in first["messages"]] == [
        "system",
        *("user", "assistant", "tool", "assistant") * 3,
        "user",
    ]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["calculate"]


@pytest.mark.nightly
def test_a_server_that_hangs_or_stops_is_an_error_of_one_call(run: Run) -> None:
    result = run("examples", str(Path(__file__).with_name("calculator_process")))
    assert result.exit_code == 0, result.stderr
    answers, starts = re.fullmatch(r"(\[.*\]) (\d)\n", result.stdout).groups()  # type: ignore[union-attr]
    assert json.loads(answers) == [["1", 1]] * 3 + [["1", 0], ["1", 1]] + [["1", 0]] * 5
    assert starts == "4"
    tools = [line.strip() for line in describe_calls(result) if line.startswith("  ")]
    assert tools[:8] == [
        "solver error calculate(expression=wrong): result of wrong",
        "solver error calculate(expression=hang): Error: no result within 2 seconds",
        "solver ok calculate(expression=right): result of right",
        "solver error calculate(expression=stop): Error: the calculator stopped",
        "solver ok calculate(expression=right): result of right",
        "solver ok calculate(expression=last): result of last",
        "solver error calculate(expression=after): Error: the calculator stopped",
        "solver ok calculate(expression=right): result of right",
    ]
