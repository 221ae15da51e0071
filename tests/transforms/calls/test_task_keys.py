import json
from typing import Any

import pytest
from tests.transforms import made

from ltrain_transforms.calls import calls, executions

SCOPE = "opentelemetry.instrumentation.openai.v1"


def chat(name: str, text: str, at: int, parent: str | None = None, **more: Any) -> made.Row:
    messages = [{"role": "user", "parts": [{"type": "text", "content": text}]}]
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(messages),
        **more.pop("attributes", {}),
    }
    return made.span(name, attributes, parent=parent, at=(at, at + 1), scope=SCOPE, **more)


def agent(name: str, at: tuple[int, int], parent: str | None = None, **more: Any) -> made.Row:
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    return made.span(name, attributes, parent=parent, at=at, **more)


def keys(*rows: made.Row) -> list[str | None]:
    spans = made.spans(*rows)
    found = executions(spans, calls(spans)[0])
    return found.sort("execution_id")["task_key"].to_list()


def test_the_same_question_has_the_same_key() -> None:
    first, second, other = keys(
        chat("a", "one?", 0, execution_id="e1"),
        chat("b", " one?\n", 5, execution_id="e2"),
        chat("c", "two?", 5, execution_id="e3"),
    )
    assert first == second != other
    assert first is not None


def test_a_recorded_task_is_the_key() -> None:
    assert keys(chat("a", "one?", 0, task_id="t1")) == ["t1"]


@pytest.mark.parametrize("name", ["ltrain.redacted", "ltrain.cut"])
def test_an_incomplete_request_has_no_key(name: str) -> None:
    cut = {"ltrain.redacted": "true", "ltrain.cut": '{"gen_ai.input.messages": 90000}'}
    assert keys(chat("a", "one?", 0, attributes={name: cut[name]})) == [None]


def test_the_request_is_that_of_the_root_agent() -> None:
    """A sub-agent may make a call before its root agent does."""
    plain, nested, only_nested = keys(
        agent("p", (0, 9), execution_id="e1"),
        chat("p1", "one?", 5, "p", execution_id="e1"),
        agent("n", (0, 9), execution_id="e2"),
        agent("n0", (1, 4), "n", execution_id="e2"),
        chat("n1", "recall", 2, "n0", execution_id="e2"),
        chat("n2", "one?", 5, "n", execution_id="e2"),
        agent("o", (0, 9), execution_id="e3"),
        agent("o0", (1, 4), "o", execution_id="e3"),
        chat("o1", "recall", 2, "o0", execution_id="e3"),
    )
    assert plain == nested
    assert only_nested not in (plain, None)


def test_without_a_call_there_is_no_key() -> None:
    assert keys(agent("a", (0, 1))) == [None]
