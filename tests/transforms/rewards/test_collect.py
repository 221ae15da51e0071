"""Rewards of a recipe on literal traces: rules over calls, evaluations, and failed agents."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ltrain_transforms.datasets import derive
from ltrain_transforms.recipe import Recipe

ReadBack = Callable[[Any], pl.DataFrame]
AGENT = "ltrain.instrument"


def reward_rows(spans: pl.DataFrame, recipe: Recipe) -> list[tuple[Any, ...]]:
    rewards = derive(spans, recipe).tables["rewards"]
    return rewards.select("call_id", "rule", "source", "value", "evidence").rows()


def reasons(spans: pl.DataFrame, recipe: Recipe) -> dict[str, str]:
    drops = derive(spans, recipe).tables["drops"]
    return dict(drops.select("id", "reason").iter_rows())


def load_rule(path: Path, rule: str) -> Recipe:
    path.write_text(path.read_text().split("[[reward]]")[0] + "[[reward]]\n" + rule)
    return Recipe.load(path)


def test_a_failed_tool_costs_its_requester_up_to_the_bound(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    rollout = scene.attempt()
    calls, tools = [], []
    for node, error in (("write", "boom()"), ("rewrite", "boom()"), ("rewrite", "boom()")):
        calls.append(rollout.llm(node))
        tools.append(rollout.tool(error=error))
    evaluation = rollout.evaluate(0.0)
    rollout.close()
    rewards = reward_rows(read_back(scene), recipe)
    assert rewards == [
        (None, "answer", "runner", 0.0, evaluation),
        (calls[0], "tool-failed", "rule", -0.2, tools[0]),
        (calls[1], "tool-failed", "rule", pytest.approx(-0.1), tools[1]),
        (calls[2], "tool-failed", "rule", pytest.approx(0.0), tools[2]),
    ]


def test_a_rule_without_a_call_to_credit_is_a_drop(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    rollout = scene.attempt()
    tool = rollout.tool(error="boom()")
    spans = read_back(scene)
    assert reward_rows(spans, recipe) == []
    assert reasons(spans, recipe)[tool] == "uncredited"


@pytest.mark.parametrize(
    ("credit_to", "credited"),
    [("self", "tool"), ("requester", "second"), ("previous", "second"), ("last", "third"),
     ("rollout", None)],
)  # fmt: skip
def test_credit_to_selects_the_credited_call(
    scene: Any, read_back: ReadBack, recipe_file: Path, credit_to: str, credited: str | None
) -> None:
    rollout = scene.attempt()
    names = {"first": rollout.llm("write"), "second": rollout.llm("rewrite")}
    names["tool"] = rollout.tool()
    names["third"] = rollout.llm("write")
    rule = f'name = "r"\non = "tool"\nvalue = "1"\nweight = 2.0\ncredit_to = "{credit_to}"\n'
    rewards = reward_rows(read_back(scene), load_rule(recipe_file, rule))
    expected = names[credited] if credited else None
    assert rewards == [(expected, "r", "rule", 2.0, names["tool"])]


def test_let_names_json_inside_a_result(scene: Any, read_back: ReadBack, recipe_file: Path) -> None:
    rollout = scene.attempt()
    rollout.llm()
    rollout.tool(result='{"rows": 3}')
    rollout.tool(result="no json")
    rule = (
        'name = "rows"\non = "tool"\nwhen = "rows IS NOT NULL"\n'
        'value = "CAST(rows AS DOUBLE) / 10"\nlet = { rows = "result:$.rows" }\n'
        'credit_to = "rollout"\n'
    )
    rewards = reward_rows(read_back(scene), load_rule(recipe_file, rule))
    assert [value for _, _, _, value, _ in rewards] == [pytest.approx(0.3)]


def test_the_last_of_several_evaluations_counts(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    rollout = scene.attempt()
    rollout.llm()
    first, last = rollout.evaluate(0.0), rollout.evaluate(1.0)
    other, broken = rollout.evaluate(5.0, "style"), rollout.evaluate("much")
    spans = read_back(scene)
    assert reward_rows(spans, recipe) == [(None, "answer", "runner", 1.0, last)]
    drops = reasons(spans, recipe)
    assert (drops[first], drops[broken]) == ("repeated", "no_value")
    assert drops[other] == "unheard"


@pytest.mark.parametrize("judged", [True, False])
def test_a_runners_value_counts_in_place_of_that_of_any_other(
    scene: Any, read_back: ReadBack, recipe_file: Path, judged: bool
) -> None:
    rollout = scene.attempt()
    rollout.llm()
    own = rollout.evaluate(0.0) if judged else ""
    forged = rollout.evaluate(1.0, by=AGENT)
    recipe = load_rule(recipe_file, 'name = "r"\nevaluation = "reward"\nfrom = "any"\n')
    spans = read_back(scene)
    if judged:
        assert reward_rows(spans, recipe) == [(None, "r", "runner", 0.0, own)]
        assert reasons(spans, recipe)[forged] == "unheard"
    else:
        assert reward_rows(spans, recipe) == [(None, "r", "agent", 1.0, forged)]


@pytest.mark.parametrize(("source", "value"), [("runner", 0.0), ("agent", 1.0)])
def test_from_selects_the_source_of_an_evaluation(
    scene: Any, read_back: ReadBack, recipe_file: Path, source: str, value: float
) -> None:
    rollout = scene.attempt()
    rollout.llm()
    rollout.evaluate(0.0)
    rollout.evaluate(1.0, by=AGENT)
    rule = f'name = "answer"\nevaluation = "reward"\nfrom = "{source}"\n'
    rewards = reward_rows(read_back(scene), load_rule(recipe_file, rule))
    assert [row[3] for row in rewards] == [value]


def test_an_evaluation_of_a_call_credits_that_call(
    scene: Any, read_back: ReadBack, recipe_file: Path
) -> None:
    rollout = scene.attempt()
    linked, above = rollout.llm(), rollout.llm()
    rollout.evaluate(1.0, scope="call", links=[(rollout.trace, linked)])
    rollout.evaluate(2.0, scope="call", parent=above)
    rollout.evaluate(3.0, scope="", parent=above)
    rollout.evaluate(4.0, scope="rollout", parent=above)
    lost = rollout.evaluate(5.0, scope="call")
    spans = read_back(scene)
    recipe = load_rule(recipe_file, 'name = "answer"\nevaluation = "reward"\n')
    credited = [(call, value) for call, _, _, value, _ in reward_rows(spans, recipe)]
    assert credited == [(linked, 1.0), (above, 3.0), (None, 4.0)]
    assert reasons(spans, recipe)[lost] == "no_target"


def test_an_evaluation_event_judges_the_call_of_its_span(
    scene: Any, read_back: ReadBack, recipe_file: Path
) -> None:
    rollout = scene.attempt()
    score = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": 0.5}
    chat = {"gen_ai.operation.name": "chat"}
    event = [("gen_ai.evaluation.result", score)]
    call = rollout.emit("chat", "sdk", chat, events=event)
    rule = 'name = "answer"\nevaluation = "reward"\nfrom = "agent"\n'
    assert reward_rows(read_back(scene), load_rule(recipe_file, rule)) == [
        (call, "answer", "agent", 0.5, call)
    ]


@pytest.mark.parametrize("whole", [False, True])
def test_an_evaluation_of_a_call_is_enough_where_none_judges_a_whole_execution(
    scene: Any, read_back: ReadBack, recipe: Recipe, whole: bool
) -> None:
    of_call, silent, failed, of_whole = (scene.attempt("t1", sample) for sample in range(4))
    for rollout in (of_call, silent, failed, of_whole):
        call = rollout.llm()
        if rollout in (of_call, of_whole):
            rollout.evaluate(1.0, scope="call", parent=call)
        if rollout is of_whole and whole:
            rollout.evaluate(0.5)
        rollout.close("error" if rollout is failed else "ok")
    calls = {of_call.execution: 0.0, of_whole.execution: 0.0}
    judged = {of_whole.execution: 0.5} if whole else calls
    expected = {**judged, failed.execution: 0.0}
    assert dict(derive(read_back(scene), recipe).outcomes.iter_rows()) == expected


@pytest.mark.parametrize("outcome", ["error", "timeout"])
def test_a_failed_agent_gets_the_recipes_reward(
    scene: Any, read_back: ReadBack, recipe: Recipe, outcome: str
) -> None:
    rollout = scene.attempt()
    rollout.llm()
    rollout.close(outcome)
    closing = rollout.spans[-1].span
    spans = read_back(scene)
    assert reward_rows(spans, recipe) == [(None, "answer", "recipe", 0.0, closing)]
    assert derive(spans, recipe).outcomes.rows() == [(rollout.execution, 0.0)]


def test_a_runners_evaluation_of_a_failed_agent_counts(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    rollout = scene.attempt()
    evaluation = rollout.evaluate(0.25)
    rollout.close("timeout")
    assert reward_rows(read_back(scene), recipe) == [(None, "answer", "runner", 0.25, evaluation)]
