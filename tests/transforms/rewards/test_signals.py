"""Signals: what is in a call beside its own spans, and the call that encloses it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from tests.otlp import insert_otlp

from ltrain_collector.signals import LOGS
from ltrain_collector.store import Store
from ltrain_transforms.calls import calls
from ltrain_transforms.datasets import derive
from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe import Recipe, Source
from ltrain_transforms.rewards.signals import read_signals
from ltrain_transforms.source import Selection, read_spans

ReadBack = Callable[[Any], pl.DataFrame]
ANY = 'name = "r"\non = "signal"\nwhen = "record <> \'x\'"\nvalue = "-1"\n'


def with_rule(path: Path, rule: str, source: str = "") -> Recipe:
    head = path.read_text().split("[[reward]]")[0]
    path.write_text(head.replace('run = "demo"', f'run = "demo"{source}') + "[[reward]]\n" + rule)
    return Recipe.load(path)


def found(spans: pl.DataFrame, recipe: Recipe) -> list[tuple[Any, ...]]:
    signals, _ = read_signals(recipe, spans, calls(spans)[0])
    return signals.select("call_id", "kind", "record", "name", "failed").rows()


def contributions(spans: pl.DataFrame, recipe: Recipe) -> list[tuple[Any, ...]]:
    rewards = derive(spans, recipe).tables["rewards"].filter(rule="r")
    return rewards.select("call_id", "value", "evidence").rows()


def test_a_signal_is_in_the_nearest_call_at_or_above_its_span(
    scene: Any, read_back: ReadBack, recipe_file: Path
) -> None:
    rollout = scene.attempt()
    model = rollout.llm()
    rollout.emit("POST", "http", {}, parent=model)
    tool = rollout.tool()
    client = rollout.emit("GET", "http", {}, parent=tool, error="refused")
    rollout.emit("connect", "socket", {}, parent=client, events=[("retry", {})])
    rollout.spans[-4].events = [("exception", {"exception.type": "E"})]  # of the tool itself
    rollout.emit("beside", "http", {})
    rollout.emit("of the runner", "ltrain.runner", {}, parent=tool, process="runner")
    spans, recipe = read_back(scene), with_rule(recipe_file, ANY)
    assert sorted(found(spans, recipe)) == sorted(
        [
            (model, "llm", "span", "POST", False),
            (tool, "tool", "event", "exception", False),
            (tool, "tool", "span", "GET", True),
            (tool, "tool", "span", "connect", False),
            (tool, "tool", "event", "retry", False),
        ]
    )


def test_a_rule_counts_once_for_a_call_with_its_first_signal_as_evidence(
    scene: Any, read_back: ReadBack, recipe_file: Path
) -> None:
    rollout = scene.attempt()
    model = rollout.llm()
    for _ in range(2):
        tool = rollout.tool()
        first = rollout.emit("GET", "http", {"http.status_code": 503}, parent=tool)
        rollout.emit("GET", "http", {"http.response.status_code": 500}, parent=tool)
    rule = ANY.replace("record <> 'x'", "http_status >= 500") + 'credit_to = "requester"\n'
    rewards = contributions(read_back(scene), with_rule(recipe_file, rule))
    assert [(call, value) for call, value, _ in rewards] == [(model, -1.0), (model, -1.0)]
    assert rewards[1][2] == first


def test_no_signal_is_read_for_a_recipe_without_such_a_rule(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    rollout = scene.attempt()
    rollout.emit("GET", "http", {}, parent=rollout.tool())
    assert found(read_back(scene), recipe) == []


def log(time: int, trace: str, span: str = "", severity: int = 17) -> bytes:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.time_unix_nano, record.severity_number = time, severity
    record.trace_id, record.span_id = bytes.fromhex(trace), bytes.fromhex(span)
    record.body.string_value = f"severity {severity}"
    return bytes(request.SerializeToString())


@pytest.mark.parametrize(
    ("logs", "expected"),
    [("error", ["severity 17"] * 2), ("warn", ["severity 13", "severity 17"] * 2), (None, [])],
)
def test_log_records_are_in_the_call_of_their_span_or_the_only_one_that_runs(
    scene: Any, store: Store, recipe_file: Path, logs: str | None, expected: list[str]
) -> None:
    rollout = scene.attempt()
    rollout.llm()
    tool = rollout.tool()
    spec = next(each for each in rollout.spans if each.span == tool)
    rollout.llm()
    insert_otlp(store, scene.request())
    for severity in (9, 13, 17):
        for span in (spec.span, ""):
            insert_otlp(store, log(spec.start + severity, spec.trace, span, severity), LOGS)
    insert_otlp(store, log(spec.end + 10, spec.trace), LOGS)  # a node runs
    recipe = with_rule(recipe_file, ANY, f', logs = "{logs}"' if logs else "")
    spans, _ = read_spans(store, recipe.source, Selection())
    signals, _ = read_signals(recipe, spans, calls(spans)[0])
    inside = signals.filter(call_id=tool)
    assert sorted(inside["message"]) == sorted(expected)
    assert set(inside["evidence"]) <= {tool}
    assert signals.filter(kind="node").height == (logs is not None)
    ready = with_rule(recipe_file, 'use = "log-error"\n')
    values = derive(spans, ready).tables["rewards"]["value"].to_list()
    assert values == ([-0.1] if logs else [])


def test_attributes_are_read_by_their_names(
    scene: Any, read_back: ReadBack, recipe_file: Path
) -> None:
    rollout = scene.attempt()
    tool = rollout.tool()
    span = rollout.emit("check", "acme", {"acme.verdict": "blocked"}, parent=tool)
    rule = ANY.replace("record <> 'x'", "verdict = 'blocked'")
    let = "let = { verdict = \"attributes:$['acme.verdict']\" }\n"
    rewards = contributions(read_back(scene), with_rule(recipe_file, rule + let))
    assert rewards == [(tool, -1.0, span)]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("potential = true", "a potential is computed on calls"),
        ("schema = { type = 'object' }", "a signal has no answer or result"),
    ],
)
def test_what_a_signal_cannot_have_is_refused(recipe_file: Path, rule: str, message: str) -> None:
    with pytest.raises(BadRecipe, match=message):
        with_rule(recipe_file, f"{ANY}{rule}\n")


def test_an_unknown_column_names_those_of_signals(recipe_file: Path) -> None:
    with pytest.raises(BadRecipe, match=r"there is no column 'http_statu'.*'http_status'"):
        with_rule(recipe_file, ANY.replace("record", "http_statu"))


def test_a_source_names_a_severity() -> None:
    assert Source(logs="warn").logs == "warn"
