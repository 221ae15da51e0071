"""`ltrain init` on stored rollouts and on production traffic."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.otlp import insert_otlp

from ltrain_collector.feedback import Feedback, to_request
from ltrain_collector.store import Store
from ltrain_instrument.errors import UnknownName
from ltrain_transforms.errors import FilesExist
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.show import report_rules
from ltrain_transforms.source import Selection
from ltrain_transforms.starter import take_survey, write_starter

NOON = 1_790_000_000_000_000_000


def fill_with_rollouts(store: Store, scene: Any) -> None:
    for task in ("t1", "t2"):
        for sample in range(2):
            rollout = scene.attempt(task, sample)
            rollout.llm("write")
            rollout.tool(error="boom()" if sample else "")
            rollout.llm("rewrite")
            rollout.evaluate(float(sample))
            rollout.evaluate(1.0, "executed")
            contents = {
                "ltrain.task.input": json.dumps(f"question of {task}"),
                "ltrain.task.fields": json.dumps({"gold": "SELECT 1"}),
            }
            rollout.emit("ltrain.rollout.dispatch", "ltrain.runner", contents, process="runner")
            rollout.close()
    insert_otlp(store, scene.request())


def fill_with_traffic(store: Store, *, chat: bool = True) -> None:
    request = ExportTraceServiceRequest()
    scoped = request.resource_spans.add().scope_spans.add()
    for number in range(1, 4):
        span = scoped.spans.add(name="chat small", start_time_unix_nano=NOON + number)
        span.end_time_unix_nano = NOON + number + 10**6
        span.trace_id, span.span_id = number.to_bytes(16, "big"), number.to_bytes(8, "big")
        operation = {"gen_ai.operation.name": "chat", "gen_ai.agent.name": "desk"} if chat else {}
        for key, value in operation.items():
            span.attributes.add(key=key).value.string_value = value
    insert_otlp(store, request.SerializeToString())


def test_rollouts_become_a_recipe_with_their_tasks(
    store: Store, scene: Any, tmp_path: Path
) -> None:
    fill_with_rollouts(store, scene)
    lines = write_starter(take_survey(store), tmp_path / "new")
    recipe = Recipe.load(tmp_path / "new" / "ltrain.toml")
    assert recipe.source.run == "demo-2"
    assert [policy.name for policy in recipe.policy] == ["sql"]
    assert recipe.policy[0].sampling == {"temperature": 1.0}
    assert [(reward.name, reward.evaluation) for reward in recipe.reward] == [("reward", "reward")]
    assert recipe.rollout is not None and recipe.rollout.agent == "agent:solve"
    text = (tmp_path / "new" / "ltrain.toml").read_text()
    assert '# agents = ["rewrite", "write"]' in text
    assert '# name = "executed"' in text and "2 tool calls failed" in text
    tasks = map(json.loads, (tmp_path / "new" / "tasks.jsonl").read_text().splitlines())
    assert list(tasks) == [
        {"id": id, "domain": "db", "input": f"question of {id}", "gold": "SELECT 1"}
        for id in ("t1", "t2")
    ]
    assert lines[0] == (
        "Read 4 executions with 8 LLM calls of rewrite, write; tools: execute_query."
    )
    assert [line for line in lines if line.startswith("Missing")] == [
        "Missing: your agent in agent.py and your reward in reward.py."
    ]
    assert lines[-2:] == [
        f"Next: ltrain rules {tmp_path}/new/ltrain.toml --run demo",
        f"      ltrain run {tmp_path}/new/ltrain.toml --model path/to/huggingface-model",
    ]
    report = report_rules(store, recipe, Selection(run="demo"))
    assert report.rules["rule"].to_list() == ["reward"]


def test_traffic_becomes_a_recipe_of_mode_prod(store: Store, tmp_path: Path) -> None:
    fill_with_traffic(store)
    feedback = [Feedback(trace=f"{number:032x}", name="thumbs", value=1) for number in (1, 2)]
    insert_otlp(store, to_request(feedback, NOON + 10**9).SerializeToString())
    lines = write_starter(take_survey(store), tmp_path)
    recipe = Recipe.load(tmp_path / "ltrain.toml")
    assert (recipe.source.mode, recipe.source.execution) == ("prod", "trace")
    assert recipe.rollout is None
    [reward] = recipe.reward
    assert (reward.evaluation, reward.from_) == ("thumbs", "any")
    missing = [line for line in lines if line.startswith("Missing")]
    assert len(missing) == 1 and missing[0].startswith("Missing: token ids: no call went through")
    assert lines[-1] == f"      ltrain run {tmp_path}/ltrain.toml --once --dry-run"


@pytest.mark.parametrize(
    ("fill", "missing"),
    [
        (lambda store: None, ["traces."]),
        (lambda store: fill_with_traffic(store, chat=False), ["an LLM call.", "rewards."]),
        (fill_with_traffic, ["token ids:", "rewards."]),
    ],
    ids=["no-traces", "no-calls", "no-rewards"],
)
def test_what_is_missing_is_listed(
    store: Store, tmp_path: Path, fill: Callable[[Store], None], missing: list[str]
) -> None:
    fill(store)
    lines = write_starter(take_survey(store), tmp_path)
    gaps = [line.removeprefix("Missing: ") for line in lines if line.startswith("Missing")]
    assert [gap.startswith(start) for gap, start in zip(gaps, missing, strict=True)] == [
        True for _ in missing
    ]
    Recipe.load(tmp_path / "ltrain.toml")


def test_a_task_with_one_rollout_has_no_group(store: Store, scene: Any, tmp_path: Path) -> None:
    rollout = scene.attempt()
    rollout.llm()
    rollout.evaluate(1.0)
    rollout.close()
    insert_otlp(store, scene.request())
    lines = write_starter(take_survey(store), tmp_path)
    assert any("no task has two rollouts" in line for line in lines)
    assert any("tasks: write tasks.jsonl" in line for line in lines)


def test_nothing_is_overwritten(store: Store, tmp_path: Path) -> None:
    fill_with_traffic(store)
    (tmp_path / "reward.py").write_text("mine")
    with pytest.raises(FilesExist, match=r"reward.py exists already, and nothing was written"):
        write_starter(take_survey(store), tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["reward.py"]
    assert (tmp_path / "reward.py").read_text() == "mine"


def test_a_mode_is_read_beside_newer_runs(store: Store, scene: Any) -> None:
    fill_with_traffic(store)
    fill_with_rollouts(store, scene)
    assert take_survey(store).run == "demo"
    assert take_survey(store, mode="prod").executions == 3


def test_an_unknown_run_is_refused(store: Store, scene: Any) -> None:
    fill_with_rollouts(store, scene)
    with pytest.raises(UnknownName, match=r"Unknown run 'demmo'.*Did you mean 'demo'"):
        take_survey(store, run="demmo")
