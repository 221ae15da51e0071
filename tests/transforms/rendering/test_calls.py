"""Calls without token ids: their rendered rows, and each reason to leave one out."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.transforms.exports.conftest import tokenizer as tokenizer  # a fixture
from tests.transforms.samples.test_split_reasons import QWEN
from tests.transforms.talk import Message, Talk, message, recipe
from tokenizers import Tokenizer

from ltrain_transforms.rendering import REASONS, ServedPolicy
from ltrain_transforms.samples import samples
from ltrain_transforms.samples.row_filters import REASONS as ROW_REASONS

RENDERED = recipe(policy=[{"name": "sql", "token_source": "rendered"}])
USER = message("user", "1 + 1?")
WITHOUT_IDS: dict[str, Any] = {
    "prompt_token_ids": None,
    "response_token_ids": None,
    "response_logprobs": None,
    "model": "sql",
}


def say(talk: Talk, answer: Message, *prompt: Message, **cells: Any) -> str:
    """Add a call without token ids."""
    return talk.call((), (), messages=prompt or [USER], answer=answer, **{**WITHOUT_IDS, **cells})


def rows_of(talk: Talk, folder: Path) -> tuple[Any, Any]:
    return samples(RENDERED, *talk.frames(), [ServedPolicy("sql", folder)])


def decode(folder: Path, ids: list[int]) -> str:
    read = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return str(read.decode(ids, skip_special_tokens=False))


def test_calls_without_ids_become_a_row_that_says_so(tokenizer: Path) -> None:
    talk = Talk()
    first = message("assistant", "2")
    say(talk, first)
    say(talk, message("assistant", "yes"), USER, first, message("user", "sure?"))
    rows, drops = rows_of(talk, tokenizer)
    (row,) = rows.to_dicts()
    assert (row["tokens"], row["transition_ids"], drops.height) == ("rendered", ["c0", "c1"], 0)
    assert decode(tokenizer, row["prompt_ids"]) == (
        "<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n"
    )
    trained = [i for i, m in zip(row["response_ids"], row["response_mask"], strict=True) if m]
    assert decode(tokenizer, trained) == "2<|im_end|>yes<|im_end|>"
    assert set(row["rollout_logprobs"]) == {0.0}
    assert row["call_versions"] == [0, 0]


def test_recorded_ids_are_kept_and_a_row_of_both_is_rendered(tokenizer: Path) -> None:
    talk = Talk()
    say(talk, message("assistant", "2"))
    alone, _ = rows_of(talk, tokenizer)
    (ids,) = alone.select("prompt_ids", "response_ids").rows()
    talk = Talk()
    talk.call(*ids, messages=[USER], answer=message("assistant", "2"))
    turns = (USER, message("assistant", "2"), message("user", "sure?"))
    say(talk, message("assistant", "yes"), *turns)
    talk.call((1, 2), (3,), execution="e2")
    rows, _ = rows_of(talk, tokenizer)
    sources = dict(rows.select("execution_id", "tokens").iter_rows())
    assert sources == {"e1": "rendered", "e2": "sampled"}
    assert rows["transition_ids"].to_list() == [["c0", "c1"], ["c2"]]
    assert sum(rows["rollout_logprobs"].to_list()[0]) == -0.5 * len(ids[1])


TOOL = {"type": "tool_call", "id": "t", "name": "add", "arguments": '{"a":1}'}

CASES: dict[str, tuple[Message, dict[str, Any]]] = {
    "other_model": (message("assistant", "2"), {"model": "gpt-5", "policy_version": None}),
    "cut": (message("assistant", "2"), {"finish_reason": "length"}),
    "not_rendered": (message("assistant", ""), {}),
    "not_reversible": (message("assistant", "", TOOL), {}),
    "other_tokens": (message("assistant", "2"), {"output_tokens": 9}),
}


def with_tools(tokenizer: Path, tmp_path: Path) -> Path:
    """Return a tokenizer whose template writes tool calls, and an empty answer not at all."""
    for path in tokenizer.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    turn = "{{- '<|im_start|>assistant\n' + content + '<|im_end|>\n' -}}"
    assert turn in QWEN
    calls = (
        "{%- if content or each.tool_calls -%}{{- '<|im_start|>assistant\n' + content -}}"
        "{%- for call in each.tool_calls or [] -%}{{- call.function.name + ' ' -}}"
        "{{- call.function.arguments | tojson -}}{%- endfor -%}{{- '<|im_end|>\n' -}}{%- endif -%}"
    )
    template = (tmp_path / "chat_template.jinja").read_text().replace(turn, calls)
    (tmp_path / "chat_template.jinja").write_text(template)
    return tmp_path


@pytest.mark.parametrize("reason", REASONS)
def test_a_call_whose_tokens_are_not_known_is_a_drop(
    reason: str, tokenizer: Path, tmp_path: Path
) -> None:
    talk = Talk()
    say(talk, message("assistant", "2"))
    answer, cells = CASES[reason]
    say(talk, answer, **cells)
    rows, drops = rows_of(talk, with_tools(tokenizer, tmp_path))
    assert rows["transition_ids"].to_list() == [["c0"]]
    assert drops.rows() == [("rows", "c1", reason, ROW_REASONS[reason])]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"params": json.dumps({"stop_sequences": ["\n"]})}, "cut"),
        ({"params": json.dumps({"stop_sequences": ["\n"]}), "output_tokens": 1}, None),
        ({"params": json.dumps({"stop_sequences": ["\n"]}), "output_tokens": 3}, "cut"),
        ({"params": json.dumps({"stop_sequences": []})}, None),
        ({"finish_reason": "stop", "output_tokens": 2}, None),
        ({"finish_reason": "length", "output_tokens": 1}, None),
        ({"finish_reason": "length", "output_tokens": 2}, "cut"),
        ({"input_tokens": 3}, "other_tokens"),
        ({"params": json.dumps({"response_format": {"type": "json_object"}})}, "constrained"),
        ({"params": json.dumps({"extra_body": {"guided_regex": "[0-9]"}})}, "constrained"),
        ({"params": json.dumps({"tool_choice": "required"})}, "constrained"),
        ({"params": json.dumps({"tool_choice": "auto", "response_format": "text"})}, None),
        ({"output": None}, "no_tokens"),
        ({"redacted": True, "finish_reason": "length"}, "redacted"),
        ({"temperature": 0.0}, "greedy"),
    ],
)
def test_what_the_trace_says_of_sampling_counts(
    cells: dict[str, Any], reason: str | None, tokenizer: Path
) -> None:
    talk = Talk()
    say(talk, message("assistant", "2"), **cells)
    _, drops = rows_of(talk, tokenizer)
    assert drops["reason"].to_list() == ([] if reason is None else [reason])


@pytest.mark.parametrize(
    "cells",
    [
        {"finish_reason": "length", "output_tokens": 1},
        {"params": json.dumps({"stop": "\n"}), "finish_reason": "stop", "output_tokens": 2},
    ],
    ids=["limit", "stop sequence"],
)
def test_an_answer_that_may_have_no_end_is_rendered_without_one(
    cells: dict[str, Any], tokenizer: Path
) -> None:
    talk = Talk()
    say(talk, message("assistant", "2"), **cells)
    rows, _ = rows_of(talk, tokenizer)
    assert decode(tokenizer, rows["response_ids"].to_list()[0]) == "2"


def test_arguments_as_the_template_writes_them_are_rendered(
    tokenizer: Path, tmp_path: Path
) -> None:
    talk = Talk()
    say(talk, message("assistant", "", TOOL | {"arguments": '{"a": 1}'}))
    rows, _ = rows_of(talk, with_tools(tokenizer, tmp_path))
    assert decode(tmp_path, rows["response_ids"].to_list()[0]) == 'add {"a": 1}<|im_end|>'


def test_the_choice_that_the_agent_used_is_rendered(tokenizer: Path) -> None:
    both = json.dumps([message("assistant", "2"), message("assistant", "yes")])
    talk = Talk()
    say(talk, message("assistant", "2"), output=both, choice=1)
    say(talk, message("assistant", "2"), output=both, execution="e2")
    rows, drops = rows_of(talk, tokenizer)
    assert decode(tokenizer, rows["response_ids"].to_list()[0]) == "yes<|im_end|>"
    assert drops.select("id", "reason").rows() == [
        ("c1", "several_choices"),
        ("c0:0", "unchosen"),
    ]


def test_without_the_key_calls_without_ids_stay_drops(tokenizer: Path) -> None:
    talk = Talk()
    say(talk, message("assistant", "2"))
    rows, drops = talk.samples()
    assert (rows.height, drops["reason"].to_list()) == (0, ["no_tokens"])
