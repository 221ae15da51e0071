import json
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from tests.transforms.exports.conftest import SYSTEM, Talks, converted, lines, message, question

from ltrain_transforms.datasets import Dataset
from ltrain_transforms.exports import ExportOptions
from ltrain_transforms.exports.conversations import REASONS, group_calls
from ltrain_transforms.exports.sft import export_sft
from ltrain_transforms.tables import CALLS

Built = Callable[..., Dataset]

CALL = {"type": "tool_call", "id": "a1", "name": "add", "arguments": {"x": 1}}
RESULT = {"type": "tool_call_response", "id": "a1", "response": "2"}


def reasons(drops: pl.DataFrame) -> dict[str, str]:
    return dict(drops.select("id", "reason").iter_rows())


def test_a_conversation_is_one_line_with_every_answer_weighted(talks: Talks, built: Built) -> None:
    talk = talks("t1", 0, *question("1 + 1?"))
    first = talk.answers("", CALL)
    second = talk.hears({"role": "tool", "parts": [RESULT]}).answers("It is 2.")
    talk.ends(1.0)
    made = converted(export_sft, built(), ExportOptions())
    function = {"name": "add", "arguments": '{"x": 1}'}
    tool_call = {"id": "a1", "type": "function", "function": function}
    assert made.rows == [
        {
            "messages": [
                {"role": "system", "content": "You help."},
                {"role": "user", "content": "1 + 1?"},
                {"role": "assistant", "content": "", "tool_calls": [tool_call], "weight": 1},
                {"role": "tool", "tool_call_id": "a1", "content": "2"},
                {"role": "assistant", "content": "It is 2.", "weight": 1},
            ]
        }
    ]
    assert made.lineage == [[first, second]]
    assert made.drops.is_empty()


def test_a_single_answer_needs_no_weight(talks: Talks, built: Built) -> None:
    talks("t1", 0, *question("hi")).answers("hello")
    talks("t1", 1, *question("hi")).ends(1.0)
    dataset = built()
    assert lines(converted(export_sft, dataset, ExportOptions())) == []


def test_answers_that_the_policy_did_not_sample_have_weight_0(talks: Talks, built: Built) -> None:
    shot = (SYSTEM, message("user", "2 + 2?"), message("assistant", "4"), message("user", "1 + 1?"))
    talk = talks("t1", 0, *shot)
    talk.answers("2")
    talk.ends(1.0)
    (line,) = lines(converted(export_sft, built(), ExportOptions()))
    weights = [one.get("weight") for one in line["messages"]]
    assert weights == [None, None, 0, None, 1]


def test_the_best_rollouts_of_each_group_are_selected(talks: Talks, built: Built) -> None:
    ids = {}
    for task, sample, reward in (("a", 0, 1.0), ("a", 1, 0.4), ("a", 2, 0.7), ("b", 0, 0.2)):
        talk = talks(task, sample, *question(task))
        talk.answers(f"{reward}")
        ids[task, sample] = talk.ends(reward).execution
    infra = talks("a", 3, *question("a"))
    infra.answers("1")
    infra.ends(1.0, "infra")
    silent = talks("b", 1, *question("b"))
    silent.answers("1")
    silent.ends()
    dataset = built()

    def texts(**options: Any) -> list[str]:
        rows = lines(converted(export_sft, dataset, ExportOptions(**options)))
        return sorted(row["messages"][-1]["content"] for row in rows)

    assert texts() == ["0.2", "0.4", "0.7", "1.0"]
    assert texts(best=1) == ["0.2", "1.0"]
    assert texts(best=2) == ["0.2", "0.7", "1.0"]
    assert texts(min=0.7) == ["0.7", "1.0"]
    drops = reasons(converted(export_sft, dataset, ExportOptions(best=2, min=0.3)).drops)
    assert drops == {
        ids["a", 1]: "not_best",
        ids["b", 0]: "below",
        infra.execution: "infra",
        silent.execution: "unrewarded",
    }


def test_a_branch_and_a_sub_agent_are_conversations_of_their_own(
    talks: Talks, built: Built
) -> None:
    talk = talks("t1", 0, *question("plan"))
    talk.answers("one")
    point = list(talk.history)
    talk.hears(message("user", "go on")).answers("two")
    talk.history = [*point, message("user", "or else")]
    talk.answers("three")
    talk.history = [SYSTEM, message("user", "look it up")]
    talk.answers("four")
    talk.ends(1.0)
    made = converted(export_sft, built(), ExportOptions())
    answers = [
        [
            (one["content"], one.get("weight"))
            for one in row["messages"]
            if one["role"] == "assistant"
        ]
        for row in lines(made)
    ]
    assert answers == [[("one", 1), ("two", 1)], [("one", 0), ("three", 1)], [("four", None)]]
    assert len([call for ids in made.lineage for call in ids]) == 4


def test_the_longer_of_two_conversations_continues(talks: Talks, built: Built) -> None:
    talk = talks("t1", 0, *question("plan"))
    start = list(talk.history)
    talk.answers("one")
    talk.hears(message("user", "go on")).answers("two")
    long, talk.history = list(talk.history), start
    talk.answers("one")
    talk.history = [*long, message("user", "and on")]
    talk.answers("three")
    talk.ends(1.0)
    assert [len(ids) for ids in converted(export_sft, built(), ExportOptions()).lineage] == [3, 1]


def test_thinking_is_kept_in_the_answer_it_was_in(talks: Talks, built: Built) -> None:
    talk = talks("t1", 0, *question("think"))
    talk.answers("two", {"type": "reasoning", "content": "one and one"})
    talk.history[-1] = message("assistant", "two")
    talk.hears(message("user", "and now?")).answers("three")
    talk.ends(1.0)
    first, second = lines(converted(export_sft, built(), ExportOptions()))
    assert first["messages"][-1] == {
        "role": "assistant",
        "content": "two",
        "reasoning_content": "one and one",
    }
    assert [m.get("weight") for m in second["messages"]] == [None, None, 0, None, 1]


def test_a_rollout_without_a_call_is_a_drop(talks: Talks, built: Built) -> None:
    idle = talks("t1", 0).ends(1.0)
    talk = talks("t1", 1, *question("hi"))
    talk.answers("hello")
    talk.ends(1.0)
    made = converted(export_sft, built(), ExportOptions())
    assert (len(made.rows), reasons(made.drops)) == (1, {idle.execution: "no_calls"})


BAD: dict[str, dict[str, Any]] = {
    "no_messages": {"input": None},
    "several_choices": {"output": '[{"content": "a"}, {"content": "b"}]'},
    "redacted": {"redacted": True},
    "multimodal": {"input": '[{"role": "user", "parts": [{"type": "image"}]}]'},
}


def frame(**cells: Any) -> pl.DataFrame:
    text = '[{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]'
    good = {"execution_id": "e1", "call_id": "c1", "seq": 0, "input": text, "output": text}
    row = {**dict.fromkeys(CALLS.schema), **good, "redacted": False, **cells}
    return pl.DataFrame([row], CALLS.schema)


@pytest.mark.parametrize("reason", BAD)
def test_calls_in_no_conversation_are_drops(reason: str) -> None:
    found, drops = group_calls(frame(**BAD[reason]))
    assert found == {}
    assert drops.rows() == [("exports", "c1", reason, REASONS[reason])]


def test_every_reason_has_a_case() -> None:
    assert BAD.keys() == REASONS.keys()


def test_the_choice_that_the_agent_continued_with_is_the_answer() -> None:
    choices = '[{"content": "a"}, {"content": "b"}]'
    found, drops = group_calls(frame(output=choices, choice=1))
    assert found["e1"][0].answer(1)["content"] == "b"
    assert drops.is_empty()


def test_messages_with_plain_content_are_read() -> None:
    text = '[{"role": "ai", "content": "hi"}]'
    found, _ = group_calls(frame(input=text, output=text))
    assert found["e1"][0].prompt(2) == [{"role": "assistant", "content": "hi"}] * 2


def test_offered_tools_are_exported(talks: Talks, built: Built) -> None:
    function = {"name": "add", "parameters": {"type": "object"}}
    openai = [{"type": "function", "function": function}]
    for sample, tools in enumerate((openai, [{"type": "function", **function}])):
        talk = talks("t1", sample, *question("1 + 1?"))
        talk.answers("", CALL, tools=json.dumps(tools))
        talk.hears({"role": "tool", "parts": [RESULT]}).answers("2", tools=json.dumps(tools))
        talk.ends(1.0)
    rows = lines(converted(export_sft, built(), ExportOptions()))
    assert [(row["tools"], len(row["messages"])) for row in rows] == [(openai, 5)] * 2


def test_tools_that_cannot_be_read_are_none() -> None:
    assert group_calls(frame(tools="[broken"))[0]["e1"][0].tools == []


@pytest.mark.parametrize(
    "tools", ["[" * 100_000, "[NaN]", '[{"name": "f", "parameters": {"maximum": 1e999}}]']
)
def test_tools_and_ids_that_json_cannot_encode_are_written(
    tools: str, talks: Talks, built: Built
) -> None:
    talk = talks("t1", 0, *question("1 + 1?"))
    for number in (float("nan"), float("inf")):
        talk.answers("", {**CALL, "id": number}, tools=tools)
        talk.hears({"role": "tool", "parts": [{**RESULT, "id": number}]})
    talk.answers("2", tools=tools)
    talk.ends(1.0)
    (row,) = lines(converted(export_sft, built(), ExportOptions()))
    calls = [call["id"] for one in row["messages"] for call in one.get("tool_calls", ())]
    assert calls == ["NaN", "Infinity"]
