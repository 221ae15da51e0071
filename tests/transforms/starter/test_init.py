"""`ltrain init` on stored rollouts and on production traffic."""

import json
import runpy
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
from ltrain_transforms.reports import report_rules
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


def fill_with_traffic(store: Store, *, chat: bool = True, **more: Any) -> None:
    """Insert three traces of one span each.

    Args:
        more: attributes of the spans, by keys of `names`.
    """
    names = {"session": "session.id", "input_tokens": "gen_ai.usage.input_tokens"}
    names["policy"] = "ltrain.policy.name"
    chat_attributes = {"gen_ai.operation.name": "chat", "gen_ai.agent.name": "desk"}
    values = {names[key]: value for key, value in more.items()} | (chat_attributes if chat else {})
    request = ExportTraceServiceRequest()
    scoped = request.resource_spans.add().scope_spans.add()
    scoped.scope.name = "ltrain.gateway" if "policy" in more else ""
    for number in range(1, 4):
        span = scoped.spans.add(name="chat small", start_time_unix_nano=NOON + number)
        span.end_time_unix_nano = NOON + number + 10**6
        span.trace_id, span.span_id = number.to_bytes(16, "big"), number.to_bytes(8, "big")
        for key, value in values.items():
            kind = "int_value" if isinstance(value, int) else "string_value"
            setattr(span.attributes.add(key=key).value, kind, value)
    insert_otlp(store, request.SerializeToString())


def test_results_that_say_that_a_command_failed_become_tool_error(
    store: Store, scene: Any, tmp_path: Path
) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.llm("write")
    rollout.tool(result="Wall time: 0 seconds\nProcess exited with code 1\nOutput:\nno file")
    rollout.tool()
    rollout.close()
    insert_otlp(store, scene.request())
    write_starter(take_survey(store), tmp_path / "new")
    recipe = Recipe.load(tmp_path / "new" / "ltrain.toml")
    assert recipe.source.tool_error == ("codex",)
    text = (tmp_path / "new" / "ltrain.toml").read_text()
    assert "[[reward]] # 1 of 2 tool calls failed; a failure costs" in text
    assert [reward.name for reward in recipe.reward] == ["reward", "tool-failed"]


def test_rollouts_become_a_recipe_with_their_tasks(
    store: Store, scene: Any, tmp_path: Path
) -> None:
    fill_with_rollouts(store, scene)
    lines = write_starter(take_survey(store), tmp_path / "new")
    recipe = Recipe.load(tmp_path / "new" / "ltrain.toml")
    assert recipe.source.run == "demo-2"
    assert [policy.name for policy in recipe.policy] == ["sql"]
    assert recipe.policy[0].sampling == {"temperature": 1.0}
    assert [reward.name for reward in recipe.reward] == ["reward", "tool-failed"]
    assert recipe.reward[0].evaluation == "reward"
    assert recipe.rollout is not None and recipe.rollout.agent == "agent:solve"
    text = (tmp_path / "new" / "ltrain.toml").read_text()
    assert '# agents = ["rewrite", "write"]' in text
    assert '# name = "executed"' in text
    assert "[[reward]] # 2 of 4 tool calls failed; a failure costs" in text
    assert recipe.rollout.validation == "val.jsonl"
    held_out, trained = (
        [json.loads(line) for line in (tmp_path / "new" / name).read_text().splitlines()]
        for name in ("val.jsonl", "tasks.jsonl")
    )
    assert [*held_out, *trained] == [
        {"id": id, "domain": "db", "input": f"question of {id}", "gold": "SELECT 1"}
        for id in ("t1", "t2")
    ]
    reward = runpy.run_path(str(tmp_path / "new" / "reward.py"))
    assert [reward["score"](trained[0], result) for result in (" SELECT 1", "?", None)] == [1, 0, 0]
    assert lines[0] == (
        "Read 4 executions with 8 LLM calls of rewrite, write; tools: execute_query."
    )
    assert [line for line in lines if line.startswith("Missing")] == [
        "Missing: your agent in agent.py: the place is marked with FILL IN.",
        "Missing: your reward in reward.py: the place is marked with FILL IN.",
    ]
    assert lines[-2:] == [
        f"Next: ltrain check {tmp_path}/new/ltrain.toml --model path/to/huggingface-model",
        f"      ltrain run {tmp_path}/new/ltrain.toml --model path/to/huggingface-model",
    ]
    report = report_rules(store, recipe, Selection(run="demo"))
    assert [row.rule for row in report.rules] == ["reward", "tool-failed"]


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
    tasks, tokens = (line for line in lines if line.startswith("Missing"))
    assert tasks.startswith("Missing: tasks: no recorded input")
    assert tokens.startswith("Missing: token ids: no call went through")
    assert lines[-1] == f"      ltrain run {tmp_path}/ltrain.toml --once --dry-run"


def test_conversations_by_content_make_sessions_the_executions(
    store: Store, tmp_path: Path
) -> None:
    fill_with_traffic(store, session="conv-0123456789abcdef")
    lines = write_starter(take_survey(store), tmp_path)
    assert Recipe.load(tmp_path / "ltrain.toml").source.execution == "session"
    assert lines[0].startswith("Read 1 execution with 3 LLM calls")


def test_feedback_of_sessions_makes_sessions_the_executions(store: Store, tmp_path: Path) -> None:
    fill_with_traffic(store, session="s-1")
    feedback = [Feedback(session="s-1", name="thumbs", value=1)]
    insert_otlp(store, to_request(feedback, NOON + 10**9).SerializeToString())
    write_starter(take_survey(store), tmp_path)
    recipe = Recipe.load(tmp_path / "ltrain.toml")
    assert recipe.source.execution == "session"
    assert [reward.evaluation for reward in recipe.reward] == ["thumbs"]


@pytest.mark.parametrize(
    ("fill", "missing"),
    [
        (lambda store: None, ["traces."]),
        (lambda store: fill_with_traffic(store, chat=False), ["an LLM call.", "rewards."]),
        (
            fill_with_traffic,
            [
                "tasks: no recorded input can be a task (3 without recorded content). Content is "
                "off: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT. Write tasks.jsonl.",
                "token ids: no call went through the gateway.",
                "rewards.",
            ],
        ),
        (
            lambda store: fill_with_traffic(store, policy="gpt-5"),
            ["tasks: no", "token ids: the server of gpt-5 does not report them", "rewards."],
        ),
    ],
    ids=["no-traces", "no-calls", "no-rewards", "recorded-only"],
)
def test_what_is_missing_is_listed(
    store: Store, tmp_path: Path, fill: Callable[[Store], None], missing: list[str]
) -> None:
    fill(store)
    lines = write_starter(take_survey(store), tmp_path)
    assert ("defaults" in lines[0]) == (missing == ["traces."])
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
    assert any("held-out tasks: write val.jsonl" in line for line in lines)
    [task] = (tmp_path / "tasks.jsonl").read_text().splitlines()
    assert json.loads(task)["input"] == "question"


def test_a_recipe_is_not_overwritten(store: Store, tmp_path: Path) -> None:
    fill_with_traffic(store)
    (tmp_path / "ltrain.toml").write_text("mine")
    with pytest.raises(FilesExist, match=r"ltrain.toml exists already, and nothing was written"):
        write_starter(take_survey(store), tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.glob("*.*")] == [
        ("ltrain.toml", "mine")
    ]


def test_an_agent_and_a_reward_of_the_user_are_kept(
    store: Store, scene: Any, tmp_path: Path
) -> None:
    fill_with_rollouts(store, scene)
    own = {
        "agent.py": "from bot import answer as solve\n",
        "reward.py": "async def judge(task, result):\n    return 1.0\n",
        "tasks.jsonl": '{"id": "mine", "input": "?"}\n',
    }
    for name, text in own.items():
        (tmp_path / name).write_text(text)
    lines = write_starter(take_survey(store), tmp_path)
    assert {name: (tmp_path / name).read_text() for name in own} == own
    kept = ", ".join(str(tmp_path / name) for name in own)
    assert lines[1:4] == [
        f"Wrote {tmp_path}/val.jsonl, {tmp_path}/ltrain.toml.",
        f"Recorded texts are in {tmp_path}/val.jsonl; only you can read them.",
        f"Kept {kept}: there before, and not changed.",
    ]
    [missing] = [line for line in lines if line.startswith("Missing")]
    assert missing == (
        "Missing: score() in reward.py. Write it, or name another function in [rollout] reward."
    )


@pytest.mark.parametrize("text", ["def solve(:", "\0", "x = solve()"])
def test_a_module_that_defines_no_agent_is_a_gap(
    store: Store, scene: Any, tmp_path: Path, text: str
) -> None:
    fill_with_rollouts(store, scene)
    (tmp_path / "agent.py").write_text(text)
    lines = write_starter(take_survey(store), tmp_path)
    assert any(line.startswith("Missing: solve() in agent.py") for line in lines)


def test_tasks_that_were_recorded_in_part_are_left_out(
    store: Store, scene: Any, tmp_path: Path
) -> None:
    for task, more in (
        ("t1", {"ltrain.cut": json.dumps({"ltrain.task.input": 99_999})}),
        ("t2", {"ltrain.redacted": True}),
        ("t3", {"ltrain.cut": json.dumps({"ltrain.rollout.result": 99_999})}),
    ):
        rollout = scene.attempt(task)
        rollout.llm()
        contents = {"ltrain.task.input": json.dumps("a question"), **more}
        rollout.emit("ltrain.rollout.dispatch", "ltrain.runner", contents, process="runner")
        rollout.close()
    insert_otlp(store, scene.request())
    survey = take_survey(store)
    assert [task["id"] for task in survey.tasks] == ["t3"]
    lines = write_starter(survey, tmp_path)
    assert any(line.startswith("Missing: 2 tasks whose text was shortened") for line in lines)


def test_calls_above_the_default_length_raise_the_limit(store: Store, tmp_path: Path) -> None:
    fill_with_traffic(store, input_tokens=5000)
    write_starter(take_survey(store), tmp_path)
    assert Recipe.load(tmp_path / "ltrain.toml").filter.max_tokens == 10_240


def test_traces_without_an_llm_call_lead_to_doctor(store: Store, tmp_path: Path) -> None:
    fill_with_traffic(store, chat=False)
    assert write_starter(take_survey(store), tmp_path)[-1] == "Next: ltrain doctor"


def test_a_mode_is_read_beside_newer_runs(store: Store, scene: Any) -> None:
    fill_with_traffic(store)
    fill_with_rollouts(store, scene)
    assert take_survey(store).run == "demo"
    assert take_survey(store, mode="prod").executions == 3


def test_an_unknown_run_is_refused(store: Store, scene: Any) -> None:
    fill_with_rollouts(store, scene)
    with pytest.raises(UnknownName, match=r"Unknown run 'demmo'.*Did you mean 'demo'"):
        take_survey(store, run="demmo")
