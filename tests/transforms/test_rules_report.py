"""`ltrain rules`: what each rule gives on stored traces, and why another gives nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from ltrain.cli import app
from ltrain_collector.store import Store
from ltrain_transforms.errors import NothingToBuild
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rules_report import report, stored
from ltrain_transforms.source import Selection

ReadBack = Callable[[Any], pl.DataFrame]

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
name = "said"
evaluation = "opinion"
"""


@pytest.fixture
def played(scene: Any) -> Any:
    """Two rollouts of a task: a right one whose tool works, a wrong one whose tool fails twice."""
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


def test_each_rule_with_what_it_gives(played: Any, read_back: ReadBack, rules: Path) -> None:
    made = report(read_back(played), Recipe.load(rules))
    assert (made.executions, made.judged) == (2, 2)
    columns = ("rule", "looks_at", "seen", "fired", "executions", "total", "mean", "correlation")
    right, wrong = (attempt.rollout for attempt in played.attempts)
    rows = {row[0]: row[1:] for row in made.rules.select(columns).rows()}
    assert rows["answer"] == ("evaluation", 2, 2, 2, 1.0, 0.5, pytest.approx(1.0))
    failed = ("tool", 3, 2, 1, pytest.approx(-0.3), pytest.approx(-0.15), pytest.approx(1.0))
    assert rows["tool-failed"] == failed
    assert rows["tool-succeeded"] == ("tool", 3, 1, 1, 0.1, 0.1, pytest.approx(1.0))
    shown = dict(made.rules.select("rule", "examples").rows())
    assert shown["tool-failed"] == [wrong]
    assert shown["tool-succeeded"] == [right]


def test_why_a_rule_gives_nothing(played: Any, read_back: ReadBack, rules: Path) -> None:
    made = report(read_back(played), Recipe.load(rules))
    assert dict(made.rules.filter(fired=0).select("rule", "silent").rows()) == {
        "result-used": "all it gives is left out: gated 1",
        "retrieved": "the traces hold no retrieval call; kinds in them: llm, node, tool",
        "cheap": "`when` is true for none of 4 llm calls, and null for 4: no output_tokens there",
        "style": "nobody says 'style'; evaluations there: opinion, reward",
        "said": "only agent says 'opinion', and from is 'runner'",
    }
    left = dict(
        made.rules.filter(pl.col("left_out").is_not_null()).select("rule", "left_out").rows()
    )
    assert left == {"completion-time": "gated 1", "result-used": "gated 1"}


def test_the_command_prints_it(played: Any, store: Store, rules: Path) -> None:
    store.insert_otlp(played.request())
    store.close()
    asked = ["rules", str(rules), "--store", store.name, "--run", "demo"]
    told = CliRunner().invoke(app, asked, env={"COLUMNS": "200"})
    assert told.exit_code == 0, told.output
    assert "2 executions, 2 of them judged" in told.output
    assert "style gives nothing: nobody says 'style'" in told.output
    said = json.loads(CliRunner().invoke(app, [*asked, "--json"]).output)
    assert [row["rule"] for row in said["rules"]][:2] == ["answer", "tool-failed"]
    assert said["rules"][1]["total"] == pytest.approx(-0.3)


def test_an_empty_selection_says_so(store: Store, recipe: Recipe) -> None:
    with pytest.raises(
        NothingToBuild, match=r"no execution of what .* selects .run nobody, wave 3"
    ):
        stored(store, recipe, Selection(run="nobody", wave=3))
