"""Every ready rule is documented, loads, and fires on the trace made for it and not on another."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hatchling.builders.wheel import WheelBuilder
from tests.otlp import insert_otlp
from tests.transforms.test_fixtures import requests

from ltrain_collector.store import Store
from ltrain_transforms.datasets import derive
from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe import Recipe, Reward
from ltrain_transforms.reports import report_rules
from ltrain_transforms.rules import library
from ltrain_transforms.source import Selection
from ltrain_transforms.tables import DERIVED_COLUMNS

ReadBack = Callable[[Any], pl.DataFrame]
Play = Callable[[Any], object]
DOCS = Path(__file__).parents[3] / "docs"
SECOND = 1_000_000_000

SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
OFFERED = json.dumps([{"type": "function", "name": "execute_query", "parameters": SCHEMA}])


def asks(name: str, arguments: object) -> Play:
    """Play an LLM call that requests a tool, offered or not."""
    call = {"id": "c1", "name": name, "arguments": arguments}
    offered = {"gen_ai.tool.definitions": OFFERED}
    return lambda it: it.llm(text="", tool_calls=[call], gateway=offered)


def says(text: str, **gateway: object) -> Play:
    return lambda it: it.llm(text=text, gateway=gateway)


def result(text: str, later: str, error: str = "") -> Play:
    """Play a tool's result and the model's answer after it."""

    def play(it: Any) -> None:
        it.llm("write")
        it.tool(result=text, error=error)
        it.llm("rewrite", text=later)

    return play


def tools(*more: dict[str, Any]) -> Play:
    def play(it: Any) -> None:
        it.llm()
        for each in more:
            it.tool(**each)

    return play


def agents(*outcomes: str) -> Play:
    """Play nested agents from the outermost, each with a call; any may have failed."""

    def play(it: Any) -> None:
        parent = ""
        for name, error in zip(("write", "judge"), outcomes, strict=False):
            attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
            parent = it.emit("invoke_agent", "sdk", attributes, error=error, parent=parent)
            it.emit("chat", "sdk", {"gen_ai.operation.name": "chat"}, parent=parent)

    return play


def slow(seconds: float) -> Play:
    """Play a tool that takes so many seconds."""

    def play(it: Any) -> None:
        it.llm()
        it.clock += int(seconds * SECOND)
        it.tool()
        it.spans[-2].start -= int(seconds * SECOND)

    return play


def inside(attributes: dict[str, object], **more: Any) -> Play:
    """Play a tool that returns normally, with a span inside."""

    def play(it: Any) -> None:
        it.llm()
        it.tool()
        it.emit("GET", "http-client", attributes, parent=it.spans[-2].span, **more)

    return play


QUERY, OTHER = {"arguments": '{"query": "a"}'}, {"arguments": '{"query": "b"}'}
PROGRESS = tools({"result": '{"progress": 0.25}'}, {"result": '{"progress": 0.75}'})

CASES: dict[str, tuple[Play, float | list[float], Play]] = {
    "tool-failed": (tools({"error": "boom()"}), -0.2, tools({})),
    "tool-succeeded": (tools({}), 0.1, tools({"error": "boom()"})),
    "tool-unknown": (asks("drop_table", {}), -0.2, asks("execute_query", {"query": "x"})),
    "tool-invalid": (asks("execute_query", {"query": 3}), -0.2,
                     asks("execute_query", '{"query": "x"}')),
    "tool-repeated": (tools(QUERY, OTHER, QUERY), -0.1, tools(QUERY, OTHER)),
    "result-used": (result("Lisbon", "in lisbon"), 0.1, result("Lisbon", "in Paris")),
    "result-ignored": (result("Lisbon", "in Paris"), -0.1, result("Lisbon", "Lisbon!")),
    "answer-truncated": (says("a", **{"gen_ai.response.finish_reasons": '["length"]'}), -0.5,
                         says("a", **{"gen_ai.response.finish_reasons": '["stop"]'})),
    "format-regex": (says("42"), -0.5, says("so <answer>42</answer>")),
    "format-json": (says("{'a': 1}"), -0.5, says('{"a": 1}')),
    "language-mixing": (says("The capital 首都 of it"), -0.0625, says("plain English")),
    "sub-agent-failed": (agents("", "boom()"), -0.3, agents("boom()", "")),
    "call-slow": (slow(20), -0.10001, slow(9)),
    "token-cost": (says("a", **{"gen_ai.usage.output_tokens": 100}), -0.005, says("a")),
    "signal": (inside({"http.request.method": "GET"}, error="refused"), -0.1, inside({})),
    "http-failed": (inside({"http.response.status_code": 500}), -0.1,
                    inside({"http.response.status_code": 404})),
    "grpc-failed": (inside({"rpc.grpc.status_code": 14}), -0.1,
                    inside({"rpc.grpc.status_code": 0})),
    "database-failed": (inside({"db.system": "sqlite", "error.type": "Locked"}), -0.1,
                        inside({"db.system.name": "sqlite"})),
    "exception": (inside({}, events=[("exception", {"exception.type": "E"})]), -0.1,
                  inside({}, events=[("cache.miss", {})])),
    "command-failed": (inside({"process.exit.code": 2}), -0.1, inside({"process.exit.code": 0})),
    "request-retried": (inside({"http.request.resend_count": 1}), -0.05, inside({})),
    "progress": (PROGRESS, [0.25, 0.5, -0.75], tools({"result": "no json"})),
}  # fmt: skip
"""The trace on which a rule fires, its value there, and a trace on which it must not fire."""

OTHERS = {"completion-time", "latency", "evaluator", "judge", "log-error"}
"""Rules with their own tests: below, and of log records in `rewards/test_signals.py`."""


def judged(path: Path, name: str, more: str = "") -> Recipe:
    head = path.read_text().split('[[reward]]\nname = "tool-failed"')[0]
    path.write_text(f'{head}[[reward]]\nuse = "{name}"\n{more}')
    return Recipe.load(path)


def by_sample(spans: pl.DataFrame, recipe: Recipe, rule: str) -> dict[int, list[float]]:
    """Return the values of a rule by sample index."""
    tables = derive(spans, recipe).tables
    own = tables["rewards"].filter(pl.col("rule") == rule)
    joined = own.join(tables["executions"].select("execution_id", "sample_index"), "execution_id")
    by = joined.group_by("sample_index", maintain_order=True).agg("value")
    return {sample: values for sample, values in by.iter_rows()}


def examples(language: str) -> list[str]:
    """Return the code blocks of the page in a language."""
    blocks = (DOCS / "rules.md").read_text().split("```")[1::2]
    return [block.removeprefix(language) for block in blocks if block.startswith(f"{language}\n")]


def test_the_rules_in_the_docs_load(tmp_path: Path) -> None:
    path = tmp_path / "ltrain.toml"
    path.write_text('[[policy]]\nname = "sql"\n' + examples("toml")[0])
    names = [reward.name for reward in Recipe.load(path).reward]
    assert names == ["tool-failed", "sql-only", "empty-result"]
    path.write_text('[[policy]]\nname = "sql"\n' + examples("toml")[1])
    assert [reward.name for reward in Recipe.load(path).reward] == ["payment-refused"]


def test_the_function_in_the_docs_is_a_rule() -> None:
    scope: dict[str, Any] = {}
    exec(examples("python")[0], scope)
    rows = {"call_id": ["a", "b"], "kind": ["tool", "llm"], "start": [0, 0], "end": [0, 5 * SECOND]}
    contributions = scope["slow_start"](pl.DataFrame(rows))
    assert contributions.rows() == [("b", pytest.approx(-0.3))]


def test_the_wheel_holds_every_rule() -> None:
    builder = WheelBuilder(str(DOCS.parent))
    shipped = {each.distribution_path for each in builder.recurse_included_files()}
    files = {f"ltrain_transforms/rules/ready/{name}.toml" for name in library.rule_names()}
    assert files <= shipped


def test_every_rule_has_a_case() -> None:
    assert CASES.keys() | OTHERS == set(library.rule_names())


@pytest.mark.parametrize("name", library.rule_names())
def test_it_loads_and_is_documented_with_its_source(name: str) -> None:
    assert Reward.model_validate({"use": name}).name == name
    comment = library.rule_comment(name)
    assert "Source: " in comment
    page = (DOCS / "rules.md").read_text()
    assert f"| `{name}` |" in page
    for source in ("2508.03680", "2605.26494", "2501.12948", "2503.14476", "2609.27532"):
        assert source not in comment or source in page


@pytest.mark.parametrize("name", CASES)
def test_it_fires_only_on_its_trace(
    scene: Any, read_back: ReadBack, recipe_file: Path, name: str
) -> None:
    fires, value, quiet = CASES[name]
    for sample, play in enumerate((fires, quiet)):
        rollout = scene.attempt(sample=sample)
        play(rollout)
        rollout.evaluate(1.0)
        rollout.close()
    values = by_sample(read_back(scene), judged(recipe_file, name), name)
    expected = value if isinstance(value, list) else [value]
    assert values == {0: pytest.approx(expected)}


@pytest.mark.parametrize("name", ["completion-time", "latency"])
def test_times_are_compared_with_the_median_of_the_group(
    scene: Any, read_back: ReadBack, recipe_file: Path, name: str
) -> None:
    for sample, seconds in enumerate((1, 2, 6)):
        rollout = scene.attempt(sample=sample)
        slow(seconds)(rollout)
        rollout.evaluate(1.0)
        rollout.close()
    failed = scene.attempt(sample=3)
    slow(0.5)(failed)
    failed.evaluate(0.0)
    failed.close()
    values = by_sample(read_back(scene), judged(recipe_file, name), name)
    # the median of 0.5, 1, 2 and 6 seconds is 1.5; the fastest gave a wrong answer
    assert {k: round(first, 2) for k, (first, *_) in values.items()} == {0: 0.03, 1: -0.03, 2: -0.1}


def test_evaluator_takes_an_evaluation_by_name_within_bounds(
    scene: Any, read_back: ReadBack, recipe_file: Path
) -> None:
    rollout = scene.attempt()
    call = rollout.llm()
    rollout.evaluate(3.0, "quality", by="judge", scope="call", parent=call)
    rollout.evaluate(1.0)
    rollout.close()
    recipe = judged(recipe_file, "evaluator", 'evaluation = "quality"\n')
    rewards = derive(read_back(scene), recipe).tables["rewards"]
    own = rewards.filter(pl.col("rule") == "evaluator").select("call_id", "source", "value")
    assert own.rows() == [(call, "agent", 1.0)]


def test_ready_rules_on_a_capture_of_real_agents(store: Store) -> None:
    """A LangGraph agent with RAG, one with a soft failure of a tool, one with a wrong argument."""
    for request in requests("langgraph__openinference-0.1.80-genai.otlp.json", stamped=True):
        insert_otlp(store, request)
    rules = [{"use": name} for name in library.rule_names()]
    recipe = Recipe.model_validate({"policy": [{"name": "any"}], "reward": rules})
    report = report_rules(store, recipe, Selection()).rules
    assert {row.rule: (row.fired, round(row.total, 3)) for row in report if row.fired} == {
        "exception": (2, -0.2),
        "format-json": (1, -0.5),
        "format-regex": (1, -0.5),
        "result-ignored": (1, -0.1),
        "token-cost": (8, -0.005),
        "tool-failed": (3, -0.6),
        "tool-invalid": (1, -0.2),
        "tool-repeated": (2, -0.2),
    }


def test_every_key_and_parameter_can_be_overridden(recipe_file: Path) -> None:
    more = 'name = "dear"\nweight = 2.0\nparams = { output = 1.0 }\n'
    rule = judged(recipe_file, "token-cost", more).reward[1]
    assert (rule.name, rule.use, rule.weight) == ("dear", "token-cost", 2.0)
    assert rule.params == {"input": 0.0, "output": 1.0}
    assert Reward.model_validate(rule.model_dump(by_alias=True)) == rule


def test_a_mistyped_rule_gets_a_suggestion(recipe_file: Path) -> None:
    with pytest.raises(BadRecipe, match=r"Unknown ready rule 'tool-faild'.*'tool-failed'"):
        judged(recipe_file, "tool-faild")


def test_every_derived_column_is_documented() -> None:
    page = (DOCS / "rules.md").read_text()
    assert [name for name in DERIVED_COLUMNS.schema if f"| `{name}` |" not in page] == []
