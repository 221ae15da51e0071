"""Which recorded inputs become tasks, and which results are shown."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.otlp import insert_otlp

from ltrain_collector.feedback import Feedback, to_request
from ltrain_collector.store import Store
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.starter import take_survey, write_starter
from ltrain_transforms.starter.conversations import (
    ALTERED,
    EMPTY,
    LONG,
    MAX_CHARACTERS,
    MEDIA,
    REPEATED,
    hold_out,
)

NOON = 1_790_000_000_000_000_000
HOSTILE = "x\"\"\"\n'''); import os # \u2028 \x7f [[policy]] {0} %s \\"


def message(role: str, *parts: Any) -> dict[str, Any]:
    return {
        "role": role,
        "parts": [{"type": "text", "content": p} if isinstance(p, str) else p for p in parts],
    }


def insert_calls(
    store: Store,
    calls: Sequence[tuple[dict[str, Any], str]],
    resource: dict[str, str] | None = None,
    **more: Any,
) -> None:
    """Insert one trace for each first message and answer.

    Args:
        more: further attributes of each span, with `_` in place of a point.
    """
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    for key, text in (resource or {}).items():
        group.resource.attributes.add(key=key).value.string_value = text
    scoped = group.scope_spans.add()
    scoped.scope.name = "opentelemetry.instrumentation.openai.v1"
    for number, (first, answer) in enumerate(calls, 1):
        span = scoped.spans.add(name="chat", start_time_unix_nano=NOON + number)
        span.end_time_unix_nano = NOON + number + 10**6
        span.trace_id, span.span_id = number.to_bytes(16, "big"), number.to_bytes(8, "big")
        values = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "Qwen/Qwen3-8B"}
        if first:
            system = message("system", "Be terse.")
            values["gen_ai.input.messages"] = json.dumps([system, first])
        if answer:
            values["gen_ai.output.messages"] = json.dumps([message("assistant", answer)])
        for key, value in (values | more).items():
            span.attributes.add(key=key.replace("__", ".")).value.string_value = value
    insert_otlp(store, request.SerializeToString())


def test_inputs_that_are_not_tasks_are_counted(store: Store) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:…"}}
    inputs = [
        message("user", "one"),
        message("user", " one "),
        message("user", "x" * 1_000_000),
        message("user", "two", image),
        message("user", image),
        message("user", "mail [redacted]"),
        {},
    ]
    insert_calls(store, [(each, "an answer") for each in inputs])
    survey = take_survey(store)
    assert [task["input"] for task in survey.tasks] == ["one"]
    assert survey.conversations.left_out == {
        REPEATED: 1, LONG: 1, MEDIA: 2, ALTERED: 1, EMPTY: 1
    }  # fmt: skip


def test_a_shortened_input_is_not_a_task(store: Store) -> None:
    insert_calls(store, [(message("user", "one"), "")], ltrain__cut='{"gen_ai.input.messages": 9}')
    survey = take_survey(store)
    assert (survey.tasks, survey.conversations.left_out) == ([], {ALTERED: 1})
    assert not survey.drives


def test_several_roots_of_a_conversation_are_one_task(store: Store) -> None:
    calls = [(message("user", "one"), "1"), (message("user", "two"), "2")]
    insert_calls(store, calls, gen_ai__conversation__id="conv-0123456789abcdef")
    survey = take_survey(store)
    assert [task["input"] for task in survey.tasks] == ["one"]
    [result] = survey.conversations.results
    assert (result.input, result.result) == ("one", "2")


def test_results_with_different_feedback_are_shown_first(store: Store) -> None:
    calls = [(message("user", f"question {number}"), f"answer {number}") for number in range(5)]
    insert_calls(store, calls)
    feedback = [Feedback(trace=f"{5:032x}", name="thumbs", value=0)]
    insert_otlp(store, to_request(feedback, NOON + 10**9).SerializeToString())
    results = take_survey(store).conversations.results
    assert [(each.result, each.evaluations) for each in results] == [
        ("answer 4", {"thumbs": 0.0}),
        ("answer 0", {}),
        ("answer 1", {}),
    ]


def test_hostile_texts_stay_data(store: Store, tmp_path: Path) -> None:
    hostile = message("user", HOSTILE)
    insert_calls(
        store,
        [(hostile, HOSTILE), (message("user", "\ud800 half"), "ok")],
        {"service.name": HOSTILE, "process.command": HOSTILE, "process.executable.path": "\0/x"},
        gen_ai__agent__name=HOSTILE,
        code__function__name=f"os.system('x').{HOSTILE}",
    )
    survey = take_survey(store)
    assert survey.program.function is None
    write_starter(survey, tmp_path)
    recipe = Recipe.load(tmp_path / "ltrain.toml")
    assert recipe.source.run == "first"
    assert [policy.name for policy in recipe.policy] == ["mine"]
    for name in ("agent.py", "reward.py"):
        compile((tmp_path / name).read_text(), name, "exec")
    names = ("tasks.jsonl", "val.jsonl")
    tasks = [json.loads((tmp_path / name).read_text()) for name in names]
    assert HOSTILE in {task["input"] for task in tasks}


def test_a_split_is_stable() -> None:
    tasks = [{"id": f"input-{number}", "input": str(number)} for number in range(200)]
    trained, held_out = hold_out(tasks)
    assert 20 < len(held_out) < 60
    assert sorted(int(task["input"]) for task in (*trained, *held_out)) == list(range(200))
    assert [task for task in hold_out(tasks[:150])[1]] == [
        task for task in held_out if task in tasks[:150]
    ]
    assert [len(side) for side in hold_out(tasks[:1])] == [1, 0]
    assert [len(side) for side in hold_out(tasks[:2])] == [1, 1]
    assert hold_out([]) == ([], [])
    assert MAX_CHARACTERS < 1_000_000
