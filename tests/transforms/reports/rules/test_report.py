"""`ltrain rules`: what each rule gives on stored traces, and why some give nothing."""

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp
from typer.testing import CliRunner

from ltrain.cli import app
from ltrain_collector.store import Store
from ltrain_transforms.errors import NothingToBuild
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports import report_rules
from ltrain_transforms.source import Selection

DEMO = Selection(run="demo")

RULES = """
[[reward]]
use = "tool-succeeded"

[[reward]]
use = "completion-time"

[[reward]]
use = "result-used"
gate = "reward > 5"

[[reward]]
name = "retrieved"
on = "retrieval"
value = "1"

[[reward]]
name = "cheap"
on = "llm"
when = "output_tokens < 100"
value = "0.1"

[[reward]]
name = "style"
evaluation = "style"

[[reward]]
name = "opinion"
evaluation = "opinion"
"""

LATE = """
[[reward]]
name = "slow"
on = "rollout"
when = "reward > 9"
value = "1"
"""


@pytest.fixture
def played(scene: Any) -> Any:
    """Two rollouts of a task: a correct one with a tool that works, and a wrong one."""
    right, wrong = scene.attempt(sample=0), scene.attempt(sample=1)
    right.llm()
    right.tool(result="Lisbon")
    right.llm("rewrite", text="Lisbon")
    right.evaluate(1.0)
    right.evaluate(1.0, "opinion", by="agent")
    right.close()
    wrong.llm()
    wrong.tool(error="boom()")
    wrong.llm("rewrite")
    wrong.tool(error="boom()")
    wrong.evaluate(0.0)
    wrong.close()
    return scene


@pytest.fixture
def rules(recipe_file: Path) -> Path:
    recipe_file.write_text(recipe_file.read_text() + RULES)
    return recipe_file


def test_each_rule_with_what_it_gives(played: Any, store: Store, rules: Path) -> None:
    insert_otlp(store, played.request())
    made = report_rules(store, Recipe.load(rules), DEMO)
    assert (made.executions, made.judged) == (2, 2)
    right, wrong = (attempt.rollout for attempt in played.attempts)
    rows = {row.rule: astuple(row)[1:8] for row in made.rules}
    assert rows["answer"] == ("evaluation", 2, 2, 2, 1.0, 0.5, pytest.approx(1.0))
    failed = ("tool", 3, 2, 1, pytest.approx(-0.3), pytest.approx(-0.15), pytest.approx(1.0))
    assert rows["tool-failed"] == failed
    assert rows["tool-succeeded"] == ("tool", 3, 1, 1, 0.1, 0.1, pytest.approx(1.0))
    shown = {row.rule: row.examples for row in made.rules}
    assert shown["tool-failed"] == [wrong]
    assert shown["tool-succeeded"] == [right]


def test_why_a_rule_gives_nothing(played: Any, store: Store, rules: Path) -> None:
    insert_otlp(store, played.request())
    made = report_rules(store, Recipe.load(rules), DEMO)
    assert {row.rule: row.silent for row in made.rules if not row.fired} == {
        "result-used": "all its contributions are left out: gated 1",
        "retrieved": "the traces hold no retrieval call; kinds in the traces: llm, node, tool",
        "cheap": "`when` is true for none of 4 llm calls, and null for 4, which lack output_tokens",
        "style": "no evaluation is named 'style'; names in the traces: opinion, reward",
        "opinion": "evaluations named 'opinion' come from agent only, and from is 'runner'",
    }
    left = {row.rule: row.left_out for row in made.rules if row.left_out is not None}
    assert left == {"completion-time": "gated 1", "result-used": "gated 1"}


@pytest.mark.parametrize("spans", [1, 60])
def test_the_batches_do_not_change_the_report(
    scene: Any, store: Store, rules: Path, spans: int
) -> None:
    """Groups are in several batches; two of three rollouts are compared, gated and judged."""
    rules.write_text(rules.read_text() + LATE)
    for wave in range(2):
        for task in ("t1", "t2", "t3"):
            for sample in range(3):
                rollout = scene.attempt(task, sample, wave=wave)
                rollout.llm()
                rollout.clock += (1 + sample) * 100_000_000
                rollout.tool(error="boom()" if sample == wave else "", result="Lisbon")
                rollout.llm("rewrite", text="Lisbon")
                if sample < 2:
                    rollout.evaluate(sample / 3)
                rollout.close()
    insert_otlp(store, scene.request())
    recipe, calls = Recipe.load(rules), []

    def progress(phase: str, done: int, total: int) -> None:
        calls.append((phase, done, total))

    whole = report_rules(store, recipe, DEMO)
    cut = report_rules(store, recipe, DEMO, spans_a_batch=spans, progress=progress)
    assert cut.rules == whole.rules
    assert (cut.executions, cut.judged) == (whole.executions, whole.judged) == (18, 12)
    fired = {row.rule: row.fired for row in cut.rules}
    assert (fired["completion-time"], fired["tool-failed"], fired["slow"]) == (6, 6, 0)
    silent = {row.rule: row.silent for row in cut.rules}
    assert (
        silent["slow"]
        == "`when` is true for none of 18 executions, and null for 6, which lack reward"
    )
    assert silent["cheap"] == (
        "`when` is true for none of 36 llm calls, and null for 36, which lack output_tokens"
    )
    assert len(calls) == calls[-1][2] > 3
    assert {phase for phase, _, _ in calls} == {"trace"}


def test_the_command_prints_the_report(played: Any, store: Store, rules: Path) -> None:
    insert_otlp(store, played.request())
    store.close()
    arguments = ["rules", str(rules), "--store", store.name, "--run", "demo"]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "2 executions, 2 of them judged" in done.output
    assert "style gives nothing: no evaluation is named 'style'" in done.output
    report = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert [row["rule"] for row in report["rules"]][:2] == ["answer", "tool-failed"]
    assert report["rules"][1]["total"] == pytest.approx(-0.3)


def test_an_empty_selection_is_an_error(store: Store, recipe: Recipe) -> None:
    with pytest.raises(NothingToBuild, match=r"no execution that .* selects .run nobody, wave 3"):
        report_rules(store, recipe, Selection(run="nobody", wave=3))
