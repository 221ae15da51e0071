"""Log records that name no span: the call of their trace or process that ran then."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from rich.console import Console
from tests.otlp import emptied, insert_otlp, open_empty_store
from tests.transforms.conftest import RECIPE, Scene

from ltrain_collector.signals import LOGS
from ltrain_collector.store import Store
from ltrain_transforms.datasets import derive
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports import render_report, report_rules
from ltrain_transforms.show.rollout import RolloutPlace, read_rollout
from ltrain_transforms.source import Selection, read_spans
from ltrain_transforms.source.running_spans import RunningSpan, innermost

RULE = """
[[reward]]
name = "r"
on = "signal"
when = "severity >= 17"
value = "-1"
"""
WORKER = {"service.name": "worker", "service.instance.id": "worker"}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with open_empty_store(tmp_path_factory.mktemp("logs") / "store") as opened:
        yield opened


@pytest.fixture
def empty(opened: Store) -> Store:
    return emptied(opened)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    path = tmp_path / "ltrain.toml"
    path.write_text(RECIPE.replace('"demo"', '"demo", logs = "error"') + RULE)
    return Recipe.load(path)


def log(store: Store, time: int, trace: str = "", **resource: str) -> None:
    request = ExportLogsServiceRequest()
    logs = request.resource_logs.add()
    for name, value in resource.items():
        logs.resource.attributes.add(key=name.replace("__", ".")).value.string_value = value
    record = logs.scope_logs.add().log_records.add(time_unix_nano=time, severity_number=17)
    record.trace_id = bytes.fromhex(trace)
    insert_otlp(store, request.SerializeToString(), LOGS)


def credited(
    store: Store, recipe: Recipe, rollouts: tuple[str, ...] | None = None
) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Return call and evidence of each reward, and the executions of ambiguous records."""
    spans, _ = read_spans(store, recipe.source, Selection(rollouts=rollouts))
    tables = derive(spans, recipe).tables
    rewards = tables["rewards"].filter(rule="r").select("call_id", "evidence").rows()
    drops = tables["drops"].filter(reason="ambiguous", stage="rewards")
    return rewards, sorted(drops["id"])


def worked(scene: Scene, task: str = "t1") -> tuple[Any, Any, Any]:
    """Return a rollout, and the spans of its model call and its tool."""
    rollout = scene.attempt(task)
    model, tool = rollout.llm(), rollout.tool()
    spans = {each.span: each for each in rollout.spans}
    return rollout, spans[model], spans[tool]


def test_a_record_without_a_trace_is_in_the_call_that_its_resource_ran(
    empty: Store, recipe: Recipe, scene: Scene
) -> None:
    rollout, model, tool = worked(scene)
    insert_otlp(empty, scene.request())
    worker = {name.replace(".", "__"): value for name, value in WORKER.items()}
    log(empty, tool.start + 5, **worker)
    log(empty, tool.end - 5, service__name="worker")  # names no process
    log(empty, tool.end - 4, **worker, process__pid="7")  # a fork that has the same instance's id
    log(empty, tool.end - 3, service__name="other", service__instance__id="other")
    log(empty, model.end + 3_600_000_000_000, **worker)  # nothing runs
    assert credited(empty, recipe) == ([(tool.span, tool.span)], [])
    log(empty, model.end - 1, **worker)  # of a model, beside its SDK's span
    expected = [(model.span, model.span), (tool.span, tool.span)]
    assert credited(empty, recipe) == (expected, [])
    place = RolloutPlace(rollout.rollout, "demo", "train", 0, "t1")
    shown = read_rollout(empty, recipe, "a recipe", place).tables["rewards"]
    assert shown.filter(rule="r").select("call_id", "evidence").rows() == expected


@pytest.mark.parametrize("selected", [1, 2])
def test_a_record_that_two_executions_may_have_written_is_ambiguous(
    empty: Store, recipe: Recipe, scene: Scene, selected: int
) -> None:
    (one, _, tool), (other, _, _) = worked(scene, "t1"), worked(scene, "t2")
    insert_otlp(empty, scene.request())
    log(empty, tool.start + 5, service__name="worker", service__instance__id="worker")
    rollouts = (one.rollout, other.rollout)[:selected]
    expected = sorted((one.execution, other.execution)[:selected])
    assert credited(empty, recipe, rollouts) == ([], expected)
    report = report_rules(empty, recipe, Selection(rollouts=rollouts))
    assert report.ambiguous == selected
    console = Console(width=200, record=True)
    console.print(render_report(report))
    assert "of no span credited to no call: several ran (ambiguous)" in console.export_text()


def test_a_record_of_a_trace_is_in_the_only_call_of_its_process(
    empty: Store, recipe: Recipe, scene: Scene
) -> None:
    rollout, _, tool = worked(scene)
    long, later = {"start": tool.start, "end": tool.start + 900}, rollout.clock + 1_000
    tools: Sequence[str] = [
        rollout.emit(
            "t", "lib", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name},
            process=process, start=later + begin, end=later + begin + 100,
        )
        for name, process, begin in (("a", "worker", 0), ("b", "worker", 50), ("c", "mcp", 0))
    ]  # fmt: skip
    for name in ("GET", "POST"):  # two clients at a time, in one tool
        rollout.emit(name, "http", {}, parent=tool.span, **long)
    insert_otlp(empty, scene.request())
    log(empty, tool.start + 5, rollout.trace)
    log(empty, later + 20, rollout.trace, service__name="w", service__instance__id="worker")
    log(empty, later + 20, rollout.trace, service__name="w", service__instance__id="mcp")
    log(empty, later + 70, rollout.trace, service__name="w", service__instance__id="worker")
    log(empty, later + 71, rollout.trace)  # of any process
    rewards, ambiguous = credited(empty, recipe)
    assert sorted(call for call, _ in rewards) == sorted([tool.span, tools[0], tools[2]])
    assert ambiguous == [rollout.execution] * 2


def test_a_span_that_encloses_one_that_runs_is_not_innermost() -> None:
    place = ("t", "")
    spans = [
        RunningSpan(place, "t", "root", None, 0, 100),
        RunningSpan(place, "t", "ended", "root", 0, 10),  # before its child
        RunningSpan(place, "t", "late", "ended", 5, 50),
        RunningSpan(place, "t", "beside", "root", 30, 40),
        RunningSpan(place, "t", "loop", "loop", 60, 70),
    ]
    parents = {("t", "ended"): ("t", "root")}
    moments = [(place, time) for time in (7, 20, 35, 55, 65, 200)]
    found = innermost(spans, moments, parents)
    assert [[span for _, span in found[moment]] for moment in moments] == [
        ["late"], ["late"], ["beside", "late"], ["root"], ["root"], [],
    ]  # fmt: skip
