"""Every row of the tables of a rollout is in its tree once, with any trace."""

import re
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from ltrain_transforms.datasets import derive
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.show import print_shown
from ltrain_transforms.show.rollout import RolloutTables, explain_evidence
from ltrain_transforms.show.tree import RolloutTree, build_tree
from ltrain_transforms.tables import CALLS, TABLES

SECOND = 1_000_000_000


def derived(spans: pl.DataFrame, recipe: Recipe) -> RolloutTables:
    found = derive(spans, recipe)
    return RolloutTables("r1", found.tables, found.outcomes, "a recipe")


def printed(shown: RolloutTree, width: int = 80) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        print_shown(shown, console)
    return captured.get().replace("\xa0", " ")


def call(name: str, parent: str | None, seq: int, **more: Any) -> dict[str, Any]:
    row = {"execution_id": "r1.1", "call_id": name, "seq": seq, "parent_id": parent}
    row |= {"start": seq * SECOND, "end": (seq + 2) * SECOND, "kind": "agent", "name": name}
    row |= {"status": "ok", "source_spans": [name]}
    return dict.fromkeys(CALLS.schema.names()) | row | more


def of(*calls: dict[str, Any]) -> RolloutTree:
    """Build the tree of these calls, in an attempt that starts at 0."""
    tables = {table.name: table.empty() for table in TABLES}
    tables["calls"] = pl.DataFrame(list(calls), CALLS.schema)
    began = {"execution_id": "r1.1", "attempt": 1, "start": 0, "wall": 9.0, "critical_path": 9.0}
    there = {"superseded": False, "complete": True, "outcome": "ok", **began}
    columns = dict.fromkeys(tables["executions"].columns) | there
    tables["executions"] = pl.DataFrame([columns], tables["executions"].schema)
    return build_tree(
        RolloutTables("r1", tables, pl.DataFrame({"execution_id": [], "reward": []}), "none")
    )


def test_everything_is_in_it_once(scene: Any, read_back: Any, recipe: Recipe) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.dispatch()
    rollout.llm("write", (1, 2, 3), (4, 5), state={"question": "who?"})
    rollout.tool(error="boom()", state={"query": "SELECT"})
    rollout.llm("rewrite", (1, 2, 3, 4, 5, 6), (7,), state={"error": "boom"})
    rollout.emit("POST", "httpx", {}, named=False)
    rollout.evaluate(1.0)
    rollout.evaluate(1.0, name="nobody's")
    rollout.close()
    found = derived(read_back(scene), recipe)
    shown = build_tree(found)
    (attempt,) = shown.attempts
    counted = {
        "calls": len(attempt.steps),
        "executions": len(shown.attempts),
        "states": len(attempt.inputs) + sum(len(step.wrote) for step in attempt.steps),
        "rewards": len(attempt.rewards) + sum(len(step.rewards) for step in attempt.steps),
        "transitions": sum(step.credit is not None for step in attempt.steps),
        "drops": sum(map(len, [shown.drops, attempt.drops, *(s.drops for s in attempt.steps)]))
        + shown.other_spans,
    }
    assert counted == {name: found.tables[name].height for name in counted}
    assert counted["states"] and counted["rewards"] and counted["transitions"]
    assert (counted["drops"], shown.other_spans) == (3, 1), "alone, unheard, not a call"


def test_an_explanation_is_that_of_the_only_score_in_the_evidence(
    scene: Any, read_back: Any, recipe: Recipe
) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.dispatch()
    one = rollout.evaluate(0.5, explanation="it is polite")
    event = ("gen_ai.evaluation.result", {"gen_ai.evaluation.explanation": "no"})
    rollout.emit("ambiguous", "judge", {}, events=[event, event])
    rollout.close()
    spans = read_back(scene)
    explained = explain_evidence(spans, derive(spans, recipe).tables)
    assert explained == {one: "score 0.5: it is polite"}


def test_the_evidence_of_a_rule_on_signals_is_named(
    scene: Any, read_back: Any, recipe_file: Path
) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.llm()
    client = rollout.emit("GET", "http", {}, parent=rollout.tool(), error="refused")
    rollout.tool(error="boom()")
    rule = '\n[[reward]]\nname = "inside"\non = "signal"\nwhen = "failed"\nvalue = "-1"\n'
    recipe_file.write_text(recipe_file.read_text() + rule)
    spans = read_back(scene)
    tables = derive(spans, Recipe.load(recipe_file)).tables
    assert explain_evidence(spans, tables) == {client: "GET: refused"}


def test_trained_tokens_are_listed_by_call_and_row(
    scene: Any, read_back: Any, recipe: Recipe
) -> None:
    for sample in range(2):
        rollout = scene.attempt("t1", sample)
        rollout.dispatch()
        rollout.llm("write", (1, 2, 3), (4, 5))
        rollout.tool()
        rollout.llm("rewrite", (1, 2, 3, 4, 5, 6), (7, 8, 9))
        rollout.llm("write", (1, 9), (4,))
        rollout.evaluate(float(sample))
        rollout.close()
    shown = build_tree(derived(read_back(scene), recipe))
    for attempt in shown.attempts:
        tokens_and_rows = [
            [(one.tokens, one.row) for one in step.trained] for step in attempt.steps
        ]
        rows = sorted(pair for pairs in tokens_and_rows for pair in pairs)
        assert sorted(tokens for tokens, _ in rows) == [1, 2, 3]
        assert {row for tokens, row in rows if tokens > 1} != {
            row for tokens, row in rows if tokens == 1
        }, "the third call is a row of its own"
        (third,) = (step.trained for step in attempt.steps if step.call["seq"] == 7)
        assert re.fullmatch(
            r"the row begins here: \w+, prompt token 1 differs from #\d sql", third[0].begins
        )


def test_calls_are_nested_and_circles_are_not() -> None:
    shown = of(
        call("root", None, 0),
        call("late", "root", 3),
        call("early", "root", 1),
        call("deep", "early", 2),
        call("lost", "absent", 4),
        call("round", "circle", 5),
        call("circle", "round", 6),
    )
    (attempt,) = shown.attempts
    assert [(step.call["call_id"], step.depth, step.offset) for step in attempt.steps] == [
        ("root", 0, 0.0),
        ("early", 1, 1.0),
        ("deep", 2, 2.0),
        ("late", 1, 3.0),
        ("lost", 0, 4.0),
        ("round", 0, 5.0),
        ("circle", 1, 6.0),
    ]
    assert [line.split("  +")[0] for line in printed(shown).splitlines() if "#" in line] == [
        "#0 agent root",
        "├── #1 agent early",
        "│   └── #2 agent deep",
        "└── #3 agent late",
        "#4 agent lost",
        "#5 agent round",
        "└── #6 agent circle",
    ]


def test_a_very_deep_trace_is_rendered() -> None:
    calls = [call(str(n), str(n - 1) if n else None, n) for n in range(1200)]
    shown = of(*calls)
    assert shown.attempts[0].steps[-1].depth == 1199
    text = printed(shown)
    assert "#7 agent 7" in text
    assert "#1199 (level 1199) agent 1199" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_trace_cannot_control_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e[bold]"
    shown = of(call(evil, None, 0, agent=evil, error_type=evil, kind="tool", result=evil))
    text = printed(shown)
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    assert "\\u001b]0;owned\\u0007" in text
    assert "[bold]" in text
