"""One call that several instruments saw: who is believed, and what is said where they disagree."""

import json
from typing import Any

import pytest
from tests.transforms.made import span, spans, texts

from ltrain_transforms.calls.from_spans import calls

SDK, FRAMEWORK, GATEWAY = "openai.v1", "langchain", "ltrain.gateway"


def answer(text: str, *tools: tuple[str, Any], **more: str) -> dict[str, str]:
    parts: list[dict[str, Any]] = [{"type": "text", "content": text}] if text else []
    parts += [{"type": "tool_call", "id": "c", "name": n, "arguments": a} for n, a in tools]
    answer = json.dumps([{"role": "assistant", "parts": parts}])
    return {"gen_ai.operation.name": "chat", "gen_ai.output.messages": answer, **more}


def only(*made: dict[str, Any]) -> dict[str, Any]:
    call_rows, drops = calls(spans(*made))
    assert drops.is_empty()
    (row,) = call_rows.to_dicts()
    return row


@pytest.mark.parametrize(
    ("sdk", "gateway", "mismatch"),
    [
        (answer("yes"), answer("yes"), None),
        (answer("yes"), answer("no"), "output"),
        (answer("", ("look", {"a": 1})), answer("", ("look", '{"a": 1}')), None),
        (answer("", ("look", None)), answer("", ("look", {})), None),
        (answer("", ("look", {"a": 1})), answer("", ("look", {"a": 2})), "tools"),
        (answer("yes"), answer("no", ("look", {})), "output,tools"),
        (answer(""), answer("no"), None),
    ],
)
def test_the_gateways_word_counts_and_the_difference_is_told(
    sdk: dict[str, str], gateway: dict[str, str], mismatch: str | None
) -> None:
    row = only(
        span("sdk", sdk, at=(0, 9), scope=SDK),
        span("gate", gateway, parent="sdk", at=(1, 8), scope=GATEWAY),
    )
    assert row["capture_mismatch"] == mismatch
    assert row["output"] == gateway["gen_ai.output.messages"]
    assert row["source_spans"] == ["sdk", "gate"]


def test_an_answer_in_the_form_of_a_chat_api_is_compared() -> None:
    plain = json.dumps([{"role": "assistant", "content": "yes"}])
    sdk = {"gen_ai.operation.name": "chat", "gen_ai.output.messages": plain}
    for text, mismatch in (("yes", None), ("no", "output")):
        row = only(
            span("sdk", sdk, at=(0, 9), scope=SDK),
            span("gate", answer(text), parent="sdk", at=(1, 8), scope=GATEWAY),
        )
        assert row["capture_mismatch"] == mismatch


def test_without_a_gateway_the_sdk_is_believed_before_the_framework() -> None:
    row = only(
        span("chain", answer("from the framework"), at=(0, 9), scope=FRAMEWORK),
        span("sdk", answer("from the sdk"), parent="chain", at=(1, 8), scope=SDK),
    )
    assert (texts(row["output"]), row["capture_mismatch"]) == (
        [("assistant", "from the sdk")],
        "output",
    )


def test_retries_of_one_instrument_are_no_mismatch() -> None:
    row = only(
        span("sdk", answer("second"), at=(0, 9), scope=SDK),
        span("one", answer("first"), parent="sdk", at=(1, 2), scope=GATEWAY),
        span("two", answer("second"), parent="sdk", at=(3, 8), scope=GATEWAY),
    )
    assert (row["capture_mismatch"], texts(row["output"])) == (None, [("assistant", "second")])


def test_a_call_that_was_recorded_at_both_ends_is_one_and_the_gateways_word_counts() -> None:
    tokens = {
        "ltrain.prompt_token_ids": "[1,2]",
        "ltrain.prompt_token_count": "2",
        "ltrain.response_token_ids": "[3]",
        "ltrain.response_token_count": "1",
        "ltrain.response_logprobs": "AAAAvw==",
    }
    versioned = {**answer("yes"), **tokens, "ltrain.policy.version": "5"}
    row = only(
        span("sdk", answer("yes"), at=(0, 9), scope=SDK),
        span(
            "capture", {**answer("yes"), **tokens}, parent="sdk", at=(1, 8), scope="ltrain.capture"
        ),
        span("gate", versioned, parent="capture", at=(2, 7), scope=GATEWAY),
    )
    assert (row["policy_version"], row["response_token_ids"]) == (5, [[3]])
    assert sorted(row["source_spans"]) == ["capture", "gate", "sdk"]


@pytest.mark.parametrize("scope", [SDK, FRAMEWORK, GATEWAY])
def test_traces_of_one_instrument_alone_work(scope: str) -> None:
    row = only(span("a", answer("yes"), scope=scope))
    assert (row["kind"], texts(row["output"])) == ("llm", [("assistant", "yes")])
    assert (row["capture_mismatch"], row["source_spans"]) == (None, ["a"])


def test_a_response_id_joins_across_traces_only_where_times_and_outputs_agree() -> None:
    """Ollama's ids are 0-998, and a cache gives one again."""
    shared = {"gen_ai.response.id": "chatcmpl-7"}
    call_rows, _ = calls(
        spans(
            span("a", answer("yes", **shared), at=(0, 5), scope=SDK),
            span("b", answer("yes", **shared), at=(1, 4), scope=GATEWAY, trace_id="u"),
            span("later", answer("yes", **shared), at=(6, 9), scope=SDK),
            span("other", answer("no", **shared), at=(2, 3), scope=SDK),
        )
    )
    assert call_rows["source_spans"].to_list() == [["a", "b"], ["other"], ["later"]]


def test_nothing_joins_across_an_agent_or_a_tool() -> None:
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "judge"}
    call_rows, _ = calls(
        spans(
            span("outer", answer("yes"), at=(0, 9), scope=FRAMEWORK),
            span("tool", tool, parent="outer", at=(1, 8)),
            span("inner", answer("yes"), parent="tool", at=(2, 7), scope=SDK, process="other"),
        )
    )
    assert call_rows["source_spans"].to_list() == [["outer"], ["tool"], ["inner"]]


def test_messages_are_kept_as_they_were_written() -> None:
    plain = '[{"role":"user","parts":[{"type":"text","content":"caf\u00e9"}]}]'
    escaped = plain.replace("\u00e9", "\\u00e9")
    at = "gen_ai.input.messages"
    assert only(span("a", {**answer("x"), at: plain}))["input"] == plain
    assert only(span("a", {**answer("x"), at: escaped}))["input"] == json.dumps(
        json.loads(plain), ensure_ascii=False
    )
    system = {"gen_ai.system_instructions": '[{"type":"text","content":"Be terse."}]'}
    row = only(span("a", {**answer("x"), at: plain, **system}))
    assert texts(row["input"]) == [("system", "Be terse."), ("user", "caf\u00e9")]


@pytest.mark.parametrize(("sdk", "gateway"), [(True, False), (False, True)])
def test_a_call_whose_messages_were_cut_is_as_one_redacted(sdk: bool, gateway: bool) -> None:
    cut = {"ltrain.cut": '{"gen_ai.output.messages": 9000000}'}
    row = only(
        span("sdk", answer("yes", **(cut if sdk else {})), at=(0, 9), scope=SDK),
        span(
            "gate",
            answer("yes", **(cut if gateway else {})),
            parent="sdk",
            at=(1, 8),
            scope=GATEWAY,
        ),
    )
    assert row["redacted"] is gateway
