import json
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from tests.transforms.exports.conftest import SYSTEM, Talks, converted, lines, question, told

from ltrain_transforms.dataset import Dataset
from ltrain_transforms.exports import Options
from ltrain_transforms.exports.conversations import REASONS, conversations
from ltrain_transforms.exports.sft import sft
from ltrain_transforms.tables import CALLS

Built = Callable[..., Dataset]

CALL = {"type": "tool_call", "id": "a1", "name": "add", "arguments": {"x": 1}}
RESULT = {"type": "tool_call_response", "id": "a1", "response": "2"}


def reasons(drops: pl.DataFrame) -> dict[str, str]:
    return dict(drops.select("id", "reason").iter_rows())


def test_a_conversation_is_one_line_in_which_every_answer_counts(
    talks: Talks, built: Built
) -> None:
    talk = talks("t1", 0, *question("1 + 1?"))
    first = talk.answers("", CALL)
    second = talk.hears({"role": "tool", "parts": [RESULT]}).answers("It is 2.")
    talk.ends(1.0)
    made = converted(sft, built(), Options())
    function = {"name": "add", "arguments": '{"x": 1}'}
    asked = {"id": "a1", "type": "function", "function": function}
    assert made.rows == [
        {
            "messages": [
                {"role": "system", "content": "You help."},
                {"role": "user", "content": "1 + 1?"},
                {"role": "assistant", "content": "", "tool_calls": [asked], "weight": 1},
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
    assert lines(converted(sft, dataset, Options())) == []


def test_answers_that_the_policy_did_not_sample_weigh_nothing(talks: Talks, built: Built) -> None:
    shot = (SYSTEM, told("user", "2 + 2?"), told("assistant", "4"), told("user", "1 + 1?"))
    talk = talks("t1", 0, *shot)
    talk.answers("2")
    talk.ends(1.0)
    (line,) = lines(converted(sft, built(), Options()))
    weights = [message.get("weight") for message in line["messages"]]
    assert weights == [None, None, 0, None, 1]


def test_the_best_of_each_group_and_only_those_that_are_good(talks: Talks, built: Built) -> None:
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
        rows = lines(converted(sft, dataset, Options(**options)))
        return sorted(row["messages"][-1]["content"] for row in rows)

    assert texts() == ["0.2", "0.4", "0.7", "1.0"]
    assert texts(best=1) == ["0.2", "1.0"]
    assert texts(best=2) == ["0.2", "0.7", "1.0"]
    assert texts(at_least=0.7) == ["0.7", "1.0"]
    drops = reasons(converted(sft, dataset, Options(best=2, at_least=0.3)).drops)
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
    talk.hears(told("user", "go on")).answers("two")
    talk.history = [*point, told("user", "or else")]
    talk.answers("three")
    talk.history = [SYSTEM, told("user", "look it up")]
    talk.answers("four")
    talk.ends(1.0)
    made = converted(sft, built(), Options())
    said = [
        [
            (one["content"], one.get("weight"))
            for one in row["messages"]
            if one["role"] == "assistant"
        ]
        for row in lines(made)
    ]
    assert said == [[("one", 1), ("two", 1)], [("one", 0), ("three", 1)], [("four", None)]]
    assert len([call for ids in made.lineage for call in ids]) == 4


def test_of_two_conversations_the_longer_goes_on(talks: Talks, built: Built) -> None:
    talk = talks("t1", 0, *question("plan"))
    start = list(talk.history)
    talk.answers("one")
    talk.hears(told("user", "go on")).answers("two")
    long, talk.history = list(talk.history), start
    talk.answers("one")
    talk.history = [*long, told("user", "and on")]
    talk.answers("three")
    talk.ends(1.0)
    assert [len(ids) for ids in converted(sft, built(), Options()).lineage] == [3, 1]


def test_thinking_is_kept_in_the_answer_it_was_in(talks: Talks, built: Built) -> None:
    talk = talks("t1", 0, *question("think"))
    talk.answers("two", {"type": "reasoning", "content": "one and one"})
    talk.history[-1] = told("assistant", "two")
    talk.hears(told("user", "and now?")).answers("three")
    talk.ends(1.0)
    first, second = lines(converted(sft, built(), Options()))
    assert first["messages"][-1] == {
        "role": "assistant",
        "content": "two",
        "reasoning_content": "one and one",
    }
    assert [m.get("weight") for m in second["messages"]] == [None, None, 0, None, 1]


def test_who_made_no_call_is_told(talks: Talks, built: Built) -> None:
    idle = talks("t1", 0).ends(1.0)
    talk = talks("t1", 1, *question("hi"))
    talk.answers("hello")
    talk.ends(1.0)
    made = converted(sft, built(), Options())
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
def test_calls_that_are_in_no_conversation_are_told(reason: str) -> None:
    found, drops = conversations(frame(**BAD[reason]))
    assert found == {}
    assert drops.rows() == [("exports", "c1", reason, REASONS[reason])]


def test_every_reason_has_a_case() -> None:
    assert BAD.keys() == REASONS.keys()


def test_messages_with_plain_content_are_read() -> None:
    text = '[{"role": "ai", "content": "hi"}]'
    found, _ = conversations(frame(input=text, output=text))
    assert found["e1"][0].before(2) == [{"role": "assistant", "content": "hi"}] * 2


def test_tools_that_were_offered_come_along(talks: Talks, built: Built) -> None:
    function = {"name": "add", "parameters": {"type": "object"}}
    openai = [{"type": "function", "function": function}]
    for sample, given in enumerate((openai, [{"type": "function", **function}])):
        talk = talks("t1", sample, *question("1 + 1?"))
        talk.answers("", CALL, tools=json.dumps(given))
        talk.hears({"role": "tool", "parts": [RESULT]}).answers("2", tools=json.dumps(given))
        talk.ends(1.0)
    rows = lines(converted(sft, built(), Options()))
    assert [(row["tools"], len(row["messages"])) for row in rows] == [(openai, 5)] * 2


def test_tools_that_cannot_be_read_are_none() -> None:
    assert conversations(frame(tools="[broken"))[0]["e1"][0].tools == []


@pytest.mark.parametrize(
    "tools", ["[" * 100_000, "[NaN]", '[{"name": "f", "parameters": {"maximum": 1e999}}]']
)
def test_tools_and_ids_that_json_cannot_say_are_written(
    tools: str, talks: Talks, built: Built
) -> None:
    talk = talks("t1", 0, *question("1 + 1?"))
    for number in (float("nan"), float("inf")):
        talk.answers("", {**CALL, "id": number}, tools=tools)
        talk.hears({"role": "tool", "parts": [{**RESULT, "id": number}]})
    talk.answers("2", tools=tools)
    talk.ends(1.0)
    (row,) = lines(converted(sft, built(), Options()))
    calls = [call["id"] for one in row["messages"] for call in one.get("tool_calls", ())]
    assert calls == ["NaN", "Infinity"]
