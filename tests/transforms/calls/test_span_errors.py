"""Broken spans are drops with a reason; nothing that a span can say is a traceback."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property_examples import examples
from tests.transforms.made import MS, NOON, span, spans

from ltrain_transforms.calls.from_spans import calls
from ltrain_transforms.traces import MAX_ATTRIBUTE_CHARS

CHAT = {"gen_ai.operation.name": "chat"}


def dropped(*made: dict[str, Any]) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Return the ids of the calls, and stage, id and reason of the drops."""
    call_rows, drops = calls(spans(*made))
    rows = drops.select("stage", "id", "reason").rows()
    return call_rows["call_id"].to_list(), [
        (stage, span_id, reason) for stage, span_id, reason in rows
    ]


def test_a_span_that_ends_before_it_starts() -> None:
    child = span("b", CHAT, parent="a", at=(6, 7))
    assert dropped(span("a", CHAT, at=(5, 4)), child) == (["b"], [("spans", "a:e.1", "backwards")])


def test_cyclic_parents() -> None:
    made = [
        span("a", CHAT, parent="b"),
        span("b", CHAT, parent="a"),
        span("self", CHAT, parent="self"),
        span("below", CHAT, parent="a"),
        span("apart", CHAT),
    ]
    call_ids, drops = dropped(*made)
    assert sorted(call_ids) == ["apart", "below"]
    assert sorted(drops) == [
        ("spans", f"{name}:e.1", "cyclic_parents") for name in ("a", "b", "self")
    ]


def test_an_untrusted_span_closes_a_cycle_at_its_own_cost() -> None:
    mine: dict[str, Any] = {"trusted": False, "role": "agent"}
    made = [
        span("gate", CHAT, parent="mine", scope="ltrain.gateway"),
        span("mine", CHAT, parent="other", **mine),
        span("other", {"gen_ai.operation.name": "execute_tool"}, parent="more"),
        span("more", CHAT, parent="gate", **mine),
    ]
    call_ids, drops = dropped(*made)
    assert sorted(call_ids) == ["gate", "other"]
    assert sorted(drops) == [
        ("spans", f"{name}:e.1", "cyclic_parents") for name in ("mine", "more")
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_spans_with_one_id_the_trusted_one_counts(order: int) -> None:
    mine: dict[str, Any] = {"trusted": False, "role": "agent"}
    made = [
        span("a", {**CHAT, "gen_ai.request.model": "mine"}, trace_id="u", **mine),
        span("a", {**CHAT, "gen_ai.request.model": "ours"}, scope="ltrain.gateway"),
    ]
    call_rows, drops = calls(spans(*made[::order]))
    assert call_rows["name"].to_list() == ["ours"]
    assert drops.select("id", "reason").rows() == [("a:e.1", "duplicate_span")]


def test_of_two_spans_with_one_id_the_first_counts() -> None:
    made = [
        span("a", {**CHAT, "gen_ai.request.model": "first"}),
        span("a", {**CHAT, "gen_ai.request.model": "second"}, trace_id="u"),
        span("a", {**CHAT, "gen_ai.request.model": "elsewhere"}, execution_id="f.1"),
    ]
    call_rows, drops = calls(spans(*made))
    assert call_rows.select("execution_id", "name").rows() == [
        ("e.1", "first"),
        ("f.1", "elsewhere"),
    ]
    assert drops.select("id", "reason").rows() == [("a:e.1", "duplicate_span")]


def test_a_very_deep_trace_is_walked() -> None:
    deep = [span(f"s{n}", parent=f"s{n + 1}", at=(-n, n)) for n in range(5_000)]
    assert dropped(*deep, span("leaf", CHAT, parent="s0")) == (["leaf"], [])


def test_attributes_of_a_hundred_megabytes() -> None:
    large = span("a", {**CHAT, "gen_ai.input.messages": "x" * MAX_ATTRIBUTE_CHARS})
    call_ids, drops = dropped(large, span("b", CHAT, parent="a"))
    assert (call_ids, drops) == (["b"], [("spans", "a:e.1", "too_large")])


@pytest.mark.parametrize("text", ['[{"role": "user", "pa', "{}", "hello", "[" * 100_000])
def test_messages_that_are_no_json_list(text: str) -> None:
    call_rows, drops = calls(spans(span("a", {**CHAT, "gen_ai.input.messages": text})))
    assert call_rows.select("call_id", "input").rows() == [("a", None)]
    assert drops.rows() == [
        (
            "calls",
            "a:gen_ai.input.messages",
            "not_json",
            "gen_ai.input.messages is not the JSON that it must be; the call is kept without it",
        )
    ]


def test_another_captures_messages_stand_in_for_broken_ones() -> None:
    good = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "hi"}]}])
    call_rows, drops = calls(
        spans(
            span("sdk", {**CHAT, "gen_ai.input.messages": good}, at=(0, 9)),
            span(
                "gate",
                {**CHAT, "gen_ai.input.messages": good[:-9]},
                parent="sdk",
                at=(1, 8),
                scope="ltrain.gateway",
            ),
        )
    )
    assert call_rows["input"].to_list() == [good]
    assert drops.is_empty()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ltrain.prompt_token_count": "4"}, "token_count"),
        ({"ltrain.response_token_count": "3"}, "token_count"),
        ({"ltrain.response_logprobs": "AAAAvw=="}, "token_count"),
        ({"ltrain.prompt_token_ids": "[1,2"}, "not_json"),
        ({"ltrain.prompt_token_ids": "[1,-2]"}, "not_json"),
        ({"ltrain.response_token_ids": "[4,,5]"}, "not_json"),
        ({"ltrain.response_logprobs": "AAA"}, "not_json"),
    ],
)
def test_tokens_that_disagree_are_a_drop(change: dict[str, str], reason: str) -> None:
    attributes = {
        **CHAT,
        "ltrain.prompt_token_ids": "[1,2,3]",
        "ltrain.response_token_ids": "[4,5]",
        "ltrain.response_logprobs": "AAAAvwAAAL8=",
        "ltrain.prompt_token_count": "3",
        "ltrain.response_token_count": "2",
    }
    whole, none = calls(spans(span("a", attributes, scope="ltrain.gateway")))
    assert whole["prompt_token_ids"].to_list() == [[1, 2, 3]]
    assert none.is_empty()
    call_rows, drops = calls(spans(span("a", {**attributes, **change}, scope="ltrain.gateway")))
    assert (
        call_rows["prompt_token_ids"].to_list()
        == call_rows["response_logprobs"].to_list()
        == [None]
    )
    assert drops.select("id", "reason").rows() == [("a:ltrain.prompt_token_ids", reason)]


def test_numbers_that_fit_no_column_say_nothing() -> None:
    attributes = {
        **CHAT,
        "gen_ai.usage.input_tokens": "9" * 40,
        "gen_ai.usage.output_tokens": "inf",
        "gen_ai.request.temperature": '"hot"',
        "ltrain.policy.version": "99999999999",
    }
    call_rows, _ = calls(spans(span("a", attributes, scope="ltrain.gateway")))
    numbers = ("input_tokens", "output_tokens", "temperature", "policy_version")
    assert call_rows.select(numbers).rows() == [(None, None, None, None)]


def test_text_beyond_the_standard_is_read() -> None:
    result = '{"mean": NaN, "name": "half \\ud83d of a pair"}'
    made = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "t",
        "gen_ai.tool.call.result": result,
    }
    described = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "\ud83d"}]}])
    call_rows, _ = calls(
        spans(span("a", made), span("b", {**CHAT, "gen_ai.input.messages": described}, at=(2, 3)))
    )
    assert call_rows["result"].to_list() == [result, None]
    assert json.loads(call_rows["input"][1])[0]["parts"][0]["content"] == "\ufffd"


ODD = st.sampled_from(
    [
        *("", "{", "[]", "null", "[1", "NaN", "-1", "1e999", "[[", '{"a": []}', "\u0000"),
        '{"langgraph_node": 5, "lc_agent_name": [1]}',
        '{"tool_call_id": 7, "content": [3], "status": 4}',
        '[{"role": 1, "parts": [{"type": "tool_call", "id": [], "name": {}, "arguments": "{"}]}]',
        '[{"role": [], "parts": 5, "finish_reason": 3}, 7, "text"]',
        '{"choices": [{"message": {"role": [], "content": [{"id": []}], "tool_calls": 5}}]}',
        '[{"role": "ai", "content": 4, "tool_calls": [{"id": {}, "function": []}, 3]}]',
        '{"input": 99999999999999999999, "output": true, "id": 3, "generations": [[3]]}',
        '{"output": {"output": 5}, "isError": 3, "input_str": [1], "inputs": {"a": NaN}}',
    ]
)
NAMES = st.sampled_from(
    [
        *("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"),
        *("gen_ai.usage.input_tokens", "gen_ai.response.finish_reasons", "gen_ai.response.id"),
        *("gen_ai.tool.call.arguments", "gen_ai.tool.call.result", "gen_ai.request.temperature"),
        *("metadata", "llm.invocation_parameters", "output.value", "input.value", "tool.name"),
        *("llm.output_messages.0.message.role", "llm.output_messages.x.message"),
        *(
            "traceloop.entity.input",
            "traceloop.entity.output",
            "gen_ai.prompt",
            "gen_ai.completion",
        ),
        *("langfuse.observation.input", "langfuse.observation.usage_details", "ai.toolCall.args"),
        *("ai.response.toolCalls", "ai.prompt.messages", "agentops.tool.input"),
        *("ltrain.prompt_token_ids", "ltrain.response_token_ids", "ltrain.response_logprobs"),
        *("ltrain.policy.version", "ltrain.prompt_token_count"),
    ]
)
KIND = st.sampled_from(
    [
        {"gen_ai.operation.name": "chat"},
        {"gen_ai.operation.name": "execute_tool"},
        {"openinference.span.kind": "LLM"},
        {"openinference.span.kind": "TOOL"},
        {"openinference.span.kind": "CHAIN"},
        {"traceloop.span.kind": "tool"},
        {"llm.request.type": "chat"},
        {"langfuse.observation.type": "generation"},
        {"langfuse.observation.type": "tool"},
        {"langsmith.span.kind": "llm"},
        {"langsmith.span.kind": "tool"},
        {"ai.operationId": "ai.generateText.doGenerate"},
        {"ai.operationId": "ai.toolCall"},
        {"agentops.span.kind": "llm"},
        {"agentops.span.kind": "tool"},
        {},
    ]
)
IDS = st.sampled_from("abcdef")
SPAN = st.fixed_dictionaries(
    {
        "span_id": IDS,
        "parent_id": st.none() | IDS,
        "kind": KIND,
        "attributes": st.dictionaries(NAMES, ODD, max_size=4),
        "start": st.integers(-3, 3),
        "end": st.integers(-3, 3),
        "scope": st.sampled_from(["ltrain.gateway", "sdk"]),
        "status": st.sampled_from(["Unset", "Error"]),
    }
)


@settings(max_examples=examples(200))
@given(st.lists(SPAN, max_size=8))
def test_every_span_is_in_a_call_or_in_drops_or_is_structure(made: list[dict[str, Any]]) -> None:
    given_spans = [
        {
            **span(one["span_id"], {**one["kind"], **one["attributes"]}, scope=one["scope"]),
            "parent_id": one["parent_id"],
            "start": NOON + one["start"] * MS,
            "end": NOON + one["end"] * MS,
            "status": one["status"],
        }
        for one in made
    ]
    call_rows, drops = calls(spans(*given_spans))
    whole = drops.filter(drops["stage"] == "spans")["id"].str.head(1).to_list()
    used = call_rows["source_spans"].explode(empty_as_null=True).drop_nulls().to_list()
    described = Counter(used) + Counter(whole)
    there = Counter(one["span_id"] for one in made)
    describing = Counter(one["span_id"] for one in made if one["kind"])
    assert not described - there, "each span once"
    assert not describing - described, "what describes a call is in one, or in drops"
    assert call_rows["call_id"].is_unique().all()
