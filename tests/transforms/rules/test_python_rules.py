"""Python rules: entry points, checks of the returned frame, and errors of the function."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ltrain_transforms.datasets import derive
from ltrain_transforms.errors import BadRecipe, BadRule
from ltrain_transforms.recipe import Recipe

ReadBack = Callable[[Any], pl.DataFrame]

RULES = '''
import polars as pl

def first_call_pays(calls, much=-0.1):
    """Charge the first LLM call of an execution for its failed tools."""
    failed = calls.filter(kind="tool", status="error")
    first = calls.filter(kind="llm")["call_id"][0]
    return failed.select(call_id=pl.lit(first), value=pl.lit(much), evidence="call_id")

def whole(calls):
    return pl.LazyFrame({"call_id": [None], "value": [calls["execution_id"].n_unique()]})

def stranger(calls):
    return pl.DataFrame({"call_id": ["nobody"], "value": [1.0]})

def raises(calls):
    raise KeyError("tool")

def a_list(calls):
    return [1.0]

def misspelt(calls):
    return pl.DataFrame({"call_id": [None], "value": [1.0], "evidense": ["x"]})

def valueless(calls):
    return calls.select("call_id")

def texts(calls):
    return calls.select("call_id", value=pl.lit("much"))

def infinite(calls):
    return calls.select("call_id", value=pl.lit(float("inf"))).head(1)
'''
NAMES = ("first_call_pays", "whole", "stranger", "raises", "a_list", "misspelt", "valueless",
         "texts", "infinite", "missing")  # fmt: skip


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a package with entry points, as an installer does."""
    (tmp_path / "my_rules.py").write_text(RULES)
    metadata = tmp_path / "my_rules-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-rules\nVersion: 1.0\n")
    points = "".join(f"{name} = my_rules:{name}\n" for name in NAMES)
    (metadata / "entry_points.txt").write_text(f"[ltrain.rules]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "my_rules", raising=False)


def ruled(path: Path, rule: str) -> Recipe:
    path.write_text(path.read_text().split("[[reward]]")[0] + "[[reward]]\n" + rule)
    return Recipe.load(path)


def played(scene: Any) -> tuple[list[str], list[str]]:
    firsts, tools = [], []
    for sample in range(2):
        rollout = scene.attempt(sample=sample)
        firsts.append(rollout.llm())
        tools.append(rollout.tool(error="boom()"))
        rollout.llm("rewrite")
        tools.append(rollout.tool(error="boom()"))
    return firsts, tools


def test_its_contributions_count_within_bounds(
    scene: Any, read_back: ReadBack, recipe_file: Path, installed: None
) -> None:
    firsts, tools = played(scene)
    rule = 'name = "pays"\npython = "first_call_pays"\nparams = { much = -0.2 }\nmin = -0.3\n'
    rewards = derive(read_back(scene), ruled(recipe_file, rule)).tables["rewards"]
    rows = rewards.select("call_id", "rule", "source", "value", "evidence").rows()
    expected = [
        (firsts[at // 2], "pays", "rule", pytest.approx((-0.2, -0.1)[at % 2]), tools[at])
        for at in range(4)
    ]
    assert sorted(rows, key=str) == sorted(expected, key=str)


def test_it_receives_one_execution_at_a_time(
    scene: Any, read_back: ReadBack, recipe_file: Path, installed: None
) -> None:
    played(scene)
    recipe = ruled(recipe_file, 'name = "whole"\npython = "whole"\n')
    rewards = derive(read_back(scene), recipe).tables["rewards"]
    assert rewards.select("call_id", "value").rows() == [(None, 1.0), (None, 1.0)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("stranger", "it names a call in `call_id` that the execution does not have: nobody"),
        ("raises", "KeyError: 'tool'"),
        ("a_list", "it returned a list; it must return a Polars frame"),
        ("misspelt", "Unknown column 'evidense'.*Did you mean 'evidence'"),
        ("valueless", "it returned no column 'value'"),
        ("texts", "it returned values of type String"),
    ],
)
def test_its_errors_are_a_drop_of_each_execution(
    scene: Any, read_back: ReadBack, recipe_file: Path, installed: None, name: str, says: str
) -> None:
    played(scene)
    recipe = ruled(recipe_file, f'name = "mine"\npython = "{name}"\n')
    tables = derive(read_back(scene), recipe).tables
    assert tables["rewards"].is_empty()
    drops = tables["drops"].filter(reason="rule_failed")
    assert sorted(drops["id"]) == sorted(attempt.execution for attempt in scene.attempts)
    assert all(re.search(f"^mine: the rule raised .*{says}", one) for one in drops["detail"])


def test_a_function_that_cannot_be_imported_ends_the_build(
    scene: Any, read_back: ReadBack, recipe_file: Path, installed: None
) -> None:
    played(scene)
    recipe = ruled(recipe_file, 'name = "mine"\npython = "missing"\n')
    with pytest.raises(BadRule, match="cannot be imported: AttributeError") as caught:
        derive(read_back(scene), recipe)
    name = "missing"
    assert str(caught.value).startswith(f"Rule 'mine' (python = \"{name}\", my_rules:{name})")
    assert "\n" not in str(caught.value)


def test_values_that_are_not_finite_are_drops(
    scene: Any, read_back: ReadBack, recipe_file: Path, installed: None
) -> None:
    played(scene)
    recipe = ruled(recipe_file, 'name = "mine"\npython = "infinite"\n')
    tables = derive(read_back(scene), recipe).tables
    assert tables["rewards"].is_empty()
    drops = tables["drops"].filter(reason="infinite_value")
    assert drops["stage"].to_list() == ["rewards", "rewards"]
    reason = "the rule fired, and its value is NaN, infinite or beyond 1e100"
    assert drops["detail"][0] == f"mine: {reason}"


def test_an_undeclared_name_gets_a_suggestion(recipe_file: Path, installed: None) -> None:
    with pytest.raises(BadRecipe, match=r"Unknown Python rule 'hole'.*Did you mean 'whole'.*"
                       r"\[project.entry-points.\"ltrain.rules\"\]"):  # fmt: skip
        ruled(recipe_file, 'name = "mine"\npython = "hole"\n')


def test_credit_to_is_refused(recipe_file: Path, installed: None) -> None:
    with pytest.raises(BadRecipe, match="a Python rule names the calls itself"):
        ruled(recipe_file, 'name = "mine"\npython = "whole"\ncredit_to = "last"\n')
