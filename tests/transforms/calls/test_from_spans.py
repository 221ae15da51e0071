import json
import time
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from tests.transforms.made import span, spans

from ltrain_transforms.calls.from_spans import calls

LANGCHAIN = "openinference.instrumentation.langchain"
OPENAI = "opentelemetry.instrumentation.openai.v1"
MS = 1_000_000
ReadBack = Callable[[Any], pl.DataFrame]


def of_kind(call_rows: pl.DataFrame, kind: str) -> list[dict[str, Any]]:
    return call_rows.filter(pl.col("kind") == kind).to_dicts()


def test_four_spans_are_one_call_inside_its_node(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    outer = rollout.llm("write", (1, 2, 3), (4, 5))
    call_rows = calls(read_back(scene))[0]
    assert call_rows.select("seq", "kind", "name", "agent", "node", "status").rows() == [
        (0, "node", "write", "write", "write", "ok"),
        (1, "llm", "sql", "write", "write", "ok"),
    ]
    (node,), (llm,) = of_kind(call_rows, "node"), of_kind(call_rows, "llm")
    assert (llm["call_id"], llm["parent_id"]) == (outer, node["call_id"])
    assert len(llm["source_spans"]) == 3
    assert (llm["policy"], llm["policy_version"], llm["temperature"]) == ("sql", 0, 1.0)
    assert llm["prompt_token_ids"] == [1, 2, 3]
    assert llm["response_token_ids"] == [[4, 5]]
    assert llm["response_logprobs"] == [[-0.5, -0.5]]


def test_the_requesters_of_many_tools_are_found_in_time() -> None:
    """Each tool has an id of its framework's own, so that its arguments decide."""
    count, city = 4_000, {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather"}
    parts = [
        {"type": "tool_call", "id": f"c{n}", "name": "weather", "arguments": {"city": n}}
        for n in range(count)
    ]
    answer = json.dumps([{"role": "assistant", "parts": parts}])
    made = [
        span("llm", {"gen_ai.operation.name": "chat", "gen_ai.output.messages": answer}),
        *(
            span(
                f"t{n}",
                {
                    **city,
                    "gen_ai.tool.call.id": f"own{n}",
                    "gen_ai.tool.call.arguments": json.dumps({"city": count - 1 - n}),
                },
                at=(2 + n, 3 + n),
            )
            for n in range(count)
        ),
    ]
    began = time.monotonic()
    tools = of_kind(calls(spans(*made))[0], "tool")
    assert time.monotonic() - began < 40
    assert {tool["call_id"]: tool["tool_call_id"] for tool in tools} == {
        f"t{n}": f"c{count - 1 - n}" for n in range(count)
    }


def test_of_retries_the_last_good_one_counts(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    rollout.llm(gateway={"gen_ai.response.id": "good"})
    sdk = rollout.spans[1].span
    rollout.emit(
        "chat sql",
        "ltrain.gateway",
        {"gen_ai.operation.name": "chat"},
        process="gateway",
        parent=sdk,
        start=rollout.spans[1].start,
        end=rollout.spans[1].start + 1,
        error="upstream: 503",
    )
    (llm,) = of_kind(calls(read_back(scene))[0], "llm")
    assert (llm["status"], llm["error_type"], len(llm["source_spans"])) == ("ok", None, 4)
    assert llm["response_token_ids"] == [[4, 5]]


def test_a_call_that_only_the_gateway_saw_is_a_call(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "sql"}
    rollout.emit("chat sql", "ltrain.gateway", attributes, process="gateway")
    (llm,) = of_kind(calls(read_back(scene))[0], "llm")
    assert (llm["name"], llm["agent"], llm["prompt_token_ids"]) == ("sql", None, None)


@pytest.mark.parametrize(
    "broken",
    [
        {"ltrain.prompt_token_count": 4},
        {"ltrain.response_token_ids": "[4,5"},
        {"ltrain.response_logprobs": "AAAA"},
        {"ltrain.response_logprobs": "[-0.5]"},
    ],
)
def test_damaged_token_ids_are_none(
    scene: Any, read_back: ReadBack, broken: dict[str, Any]
) -> None:
    scene.attempt().llm(gateway=broken)
    (llm,) = of_kind(calls(read_back(scene))[0], "llm")
    assert llm["prompt_token_ids"] is None
    assert llm["response_token_ids"] is None
    assert llm["token_source"] is None


def test_several_choices_are_kept_apart(scene: Any, read_back: ReadBack) -> None:
    choices = {
        "ltrain.response_token_ids": "[[4],[5,6]]",
        "ltrain.response_logprobs": '["AAAAvw==","AAAAvwAAAL8="]',
        "ltrain.response_token_count": 3,
    }
    scene.attempt().llm(gateway=choices)
    (llm,) = of_kind(calls(read_back(scene))[0], "llm")
    assert llm["response_token_ids"] == [[4], [5, 6]]
    assert llm["response_logprobs"] == [[-0.5], [-0.5, -0.5]]


def test_a_tool_without_an_id_was_asked_for_by_the_call_before(
    scene: Any, read_back: ReadBack
) -> None:
    rollout = scene.attempt()
    first = rollout.llm("write")
    rollout.tool("execute_query", error="OperationalError('no such table')")
    second = rollout.llm("rewrite")
    rollout.tool("execute_query")
    tools = of_kind(calls(read_back(scene))[0], "tool")
    assert [tool["requested_by"] for tool in tools] == [first, second]
    assert [tool["status"] for tool in tools] == ["error", "ok"]
    assert tools[0]["error_type"] == "OperationalError"


def test_a_tool_call_id_decides_against_the_order(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    asks = {"id": "call_7", "name": "lookup", "arguments": {"town": "Paris"}}
    first = rollout.llm("plan", tool_calls=[asks], text="")
    rollout.llm("chat")
    answer = {"type": "tool", "data": {"content": "sunny", "tool_call_id": "call_7"}}
    rollout.tool("lookup", arguments="Paris", result=json.dumps(answer))
    (tool,) = of_kind(calls(read_back(scene))[0], "tool")
    assert tool["requested_by"] == first
    assert (tool["tool_call_id"], tool["result"]) == ("call_7", "sunny")
    assert tool["arguments"] == '{"town": "Paris"}'


def test_a_named_request_is_answered_once(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    asks = {"name": "lookup", "arguments": {}}
    first = rollout.llm("plan", tool_calls=[asks], text="")
    second = rollout.llm("plan", tool_calls=[asks], text="")
    rollout.tool("lookup")
    rollout.tool("lookup")
    tools = of_kind(calls(read_back(scene))[0], "tool")
    assert [tool["requested_by"] for tool in tools] == [first, second]


def test_a_soft_failure_is_an_error(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    message = {"content": "not found (soft)", "status": "error", "tool_call_id": "c1"}
    rollout.tool("lookup", result=json.dumps({"type": "tool", "data": message}))
    rollout.tool("remote", result='{"isError": true, "content": []}')
    call_rows = of_kind(calls(read_back(scene))[0], "tool")
    assert [(one["status"], one["result"]) for one in call_rows] == [
        ("error", "not found (soft)"),
        ("error", '{"isError": true, "content": []}'),
    ]


def test_spans_of_one_call_in_two_traces_are_joined_by_time_and_output(
    scene: Any, read_back: ReadBack
) -> None:
    rollout = scene.attempt()
    answer = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "yes"}]}])
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.output.messages": answer}
    begin = rollout.clock
    rollout.clock += 2 * MS
    other = {"trace": f"{7:032x}", "start": begin + MS}
    rollout.emit("openai.chat", OPENAI, attributes, **other)
    rollout.emit("ChatOpenAI", LANGCHAIN, attributes, start=begin)
    (llm,) = of_kind(calls(read_back(scene))[0], "llm")
    assert len(llm["source_spans"]) == 2
    assert llm["trace_id"] == rollout.trace


def test_neighbours_are_columns(scene: Any, read_back: ReadBack) -> None:
    rollout = scene.attempt()
    for error in ("boom()", "", ""):
        rollout.tool("execute_query", error=error)
    tools = of_kind(calls(read_back(scene))[0], "tool")
    assert [tool["previous_status"] for tool in tools] == [None, "error", "ok"]
    assert [tool["repeat"] for tool in tools] == [0, 1, 2]


def test_model_calls_in_model_calls_are_compared_in_linear_time() -> None:
    """Each by an instrumentation of its own, so that none is alone of its kind."""
    chat, deep = {"gen_ai.operation.name": "chat"}, 1_200
    nested = (span(f"s{n}", chat, at=(n, 2 * deep - n), scope=f"one{n}") for n in range(deep))
    frame = spans(*nested)
    began = time.process_time()
    assert calls(frame)[0].height == deep
    assert time.process_time() - began < 15, "seconds; by comparing each pair with all it takes 60"
