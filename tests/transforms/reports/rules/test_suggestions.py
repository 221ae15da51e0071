"""`ltrain rules --suggest`: signals that separate good outcomes from bad ones."""

import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from tests.otlp import insert_otlp
from typer.testing import CliRunner

from ltrain_collector.signals import METRICS
from ltrain_collector.store import Store
from ltrain_transforms.cli import app
from ltrain_transforms.recipe import Recipe, Reward, SignalReward
from ltrain_transforms.reports import suggest_rules
from ltrain_transforms.source import Selection

LOCKED = "database is 'locked'"


def play(scene: Any, planted: bool, rollouts: int = 80) -> None:
    """Play rollouts; an error of a database inside a tool comes with a bad outcome if planted."""
    drawn = random.Random(0)
    for number in range(rollouts):
        rollout = scene.attempt(task=f"t{number // 2}", sample=number % 2)
        rollout.llm()
        tool = rollout.tool(error="boom()" if drawn.random() < 0.3 else "")
        locked = drawn.random() < 0.4
        if locked:
            rollout.emit("SELECT", "sqlite", {"error.type": LOCKED}, parent=tool, error="locked")
        if drawn.random() < 0.5:
            rollout.emit("GET", "http", {"http.response.status_code": 404}, parent=tool)
        good = 0.2 if locked and planted else 0.8
        rollout.evaluate(float(drawn.random() < good))
        rollout.close()


def test_a_planted_signal_is_named_first_and_its_rule_loads(
    scene: Any, store: Store, recipe: Recipe
) -> None:
    play(scene, planted=True)
    insert_otlp(store, scene.request())
    report = suggest_rules(store, recipe, Selection())
    assert (report.executions, report.judged) == (80, 80)
    best = {each.rule or each.when for each in report.found if each.is_clear}
    first = report.found[0]
    assert (first.rule or first.when) in {
        "error_type = 'database is ''locked'''",
        "failed AND name = 'SELECT'",
        "signal",
    }
    assert "http_status = 404" not in best and "tool-failed" not in best
    assert first.difference == pytest.approx(first.with_it - first.without)
    assert first.low < first.difference < first.high < 0
    for each in report.found:
        [keys] = tomllib.loads(each.toml)["reward"]
        Reward.model_validate(keys)


def test_a_planted_measurement_is_a_signal_above_a_value(
    scene: Any, store: Store, recipe: Recipe
) -> None:
    drawn, request = random.Random(0), ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="queue's wait")
    for number in range(80):
        rollout = scene.attempt(task=f"t{number // 2}", sample=number % 2)
        rollout.llm()
        tool, waited = rollout.tool(), drawn.random() < 0.4
        point = metric.gauge.data_points.add(time_unix_nano=rollout.clock)
        point.exemplars.add(
            as_double=40.0 if waited else 2.0,
            time_unix_nano=rollout.clock,
            span_id=bytes.fromhex(tool),
            trace_id=bytes.fromhex(rollout.trace),
        )
        rollout.evaluate(float(drawn.random() < (0.1 if waited else 0.9)))
        rollout.close()
    insert_otlp(store, scene.request())
    insert_otlp(store, request.SerializeToString(), METRICS)
    first = suggest_rules(store, recipe, Selection()).found[0]
    measured = "record = 'exemplar' AND name = 'queue''s wait' AND value > "
    assert (first.when, first.is_clear) == (f"{measured}10.0", True)
    [keys] = tomllib.loads(first.toml)["reward"]
    rule = Reward.model_validate(keys)
    assert isinstance(rule, SignalReward) and rule.metrics == ("queue's wait",)


def test_nothing_is_recommended_where_no_signal_separates(
    scene: Any, store: Store, recipe_file: Path
) -> None:
    play(scene, planted=False, rollouts=60)
    insert_otlp(store, scene.request())
    command = ["rules", str(recipe_file), "--suggest", "--store", str(store.name)]
    store.close()
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "60 executions, 60 of them judged" in done.output
    assert "nothing to recommend" in done.output


def test_few_executions_are_not_compared(scene: Any, store: Store, recipe: Recipe) -> None:
    play(scene, planted=True, rollouts=6)
    insert_otlp(store, scene.request())
    assert suggest_rules(store, recipe, Selection()).found == []
