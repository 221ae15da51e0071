"""Formats of other programs for conversations, and the programs that read them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import polars as pl
import pytest
from huggingface_hub import DatasetCard
from tests.transforms.exports.conftest import SYSTEM, Talks, converted, lines, message, question

from ltrain_collector.sources.registry import reader_of
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.exports import BadExport, ExportOptions, export_dataset
from ltrain_transforms.exports.atif import export_atif
from ltrain_transforms.exports.openai import export_openai
from ltrain_transforms.exports.sharegpt import export_sharegpt
from ltrain_transforms.exports.trl import export_trl

Built = Callable[..., Dataset]

CALL = {"type": "tool_call", "id": "a1", "name": "add", "arguments": {"x": 1}}
RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "a1", "response": "2"}]}
THOUGHT = {"type": "reasoning", "content": "Easy."}
TOOL = {"name": "add", "description": "Add.", "parameters": {"type": "object"}}
TOOLS = json.dumps([{"type": "function", **TOOL}])
OFFERED = [{"type": "function", "function": TOOL}]


@pytest.fixture
def calls(talks: Talks) -> list[str]:
    """A rollout with a tool call, then an answer with thinking; the ids of its two calls."""
    talk = talks("t1", 0, *question("1 + 1?"))
    first = talk.answers("", CALL, tools=TOOLS)
    second = talk.hears(RESULT).answers("It is 2.", THOUGHT, tools=TOOLS)
    talk.ends(1.0)
    return [first, second]


def reasons(drops: pl.DataFrame) -> dict[str, str]:
    return dict(drops.select("id", "reason").iter_rows())


def test_trl_gets_each_answer_with_its_prompt(calls: list[str], built: Built) -> None:
    made = converted(export_trl, built(), ExportOptions())
    function = {"name": "add", "arguments": {"x": 1}}
    answer = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "a1", "type": "function", "function": function}],
    }
    prompt = [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "1 + 1?"},
    ]
    result = {"role": "tool", "tool_call_id": "a1", "content": "2"}
    last = {"role": "assistant", "content": "It is 2.", "reasoning_content": "Easy."}
    assert made.rows == [
        {"prompt": prompt, "completion": [answer], "tools": OFFERED},
        {"prompt": [*prompt, answer, result], "completion": [last], "tools": OFFERED},
    ]
    assert made.lineage == [[call] for call in calls]


READ_WITH_TRL = """
import sys
from datasets import load_dataset
from transformers import AutoTokenizer
from trl.data_utils import apply_chat_template, is_conversational

tokenizer = AutoTokenizer.from_pretrained(sys.argv[2], local_files_only=True)
rows = load_dataset("json", data_files=sys.argv[1], split="train", cache_dir=sys.argv[3])
assert all(map(is_conversational, rows))
for row in rows:
    texts = apply_chat_template({name: row[name] for name in ("prompt", "completion")}, tokenizer)
    print(repr(texts["completion"]))
"""


def test_trl_itself_reads_its_format(
    talks: Talks, built: Built, tokenizer: Path, tmp_path: Path
) -> None:
    talk = talks("t1", 0, *question("1 + 1?"))
    talk.answers("2")
    talk.hears(message("user", "Sure?")).answers("Yes.")
    talk.ends(1.0)
    out = tmp_path / "trl.jsonl"
    export_dataset(built(), "trl", ExportOptions(), out)
    trl = next(Path(__file__).parents[3].glob(".venv-trl/lib/python*/site-packages"))
    done = subprocess.run(
        [sys.executable, "-c", READ_WITH_TRL, str(out), str(tokenizer), str(tmp_path / "cache")],
        env={**os.environ, "PYTHONPATH": str(trl)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answers = [line.partition("<|im_end|>")[0] for line in done.stdout.splitlines()]
    assert answers == ["'2", "'Yes."]


def test_openai_gets_no_thinking(calls: list[str], talks: Talks, built: Built) -> None:
    talk = talks("t2", 0, *question("hm"))
    silent = talk.answers("", THOUGHT)
    talk.ends(1.0)
    made = converted(export_openai, built(), ExportOptions())
    [line] = lines(made)
    assert line["tools"] == OFFERED
    assert line["messages"][-1] == {"role": "assistant", "content": "It is 2.", "weight": 1}
    assert [one.get("weight") for one in line["messages"]] == [None, None, 1, None, 1]
    assert made.lineage == [calls]
    assert reasons(made.drops) == {silent: "only_thinking"}


def test_sharegpt_has_turns_that_alternate(calls: list[str], talks: Talks, built: Built) -> None:
    both = talks("t2", 0, *question("hi"))
    with_text = both.answers("I add.", CALL)
    both.ends(1.0)
    twice = talks("t3", 0, SYSTEM, message("assistant", "Hello."), message("user", "hi"))
    not_first = twice.answers("hi")
    twice.ends(1.0)
    made = converted(export_sharegpt, built(), ExportOptions())
    [line] = lines(made)
    assert line == {
        "conversations": [
            {"from": "system", "value": "You help."},
            {"from": "human", "value": "1 + 1?"},
            {"from": "function_call", "value": '{"name": "add", "arguments": {"x": 1}}'},
            {"from": "observation", "value": "2"},
            {"from": "gpt", "value": "<think>\nEasy.\n</think>\n\nIt is 2."},
        ],
        "tools": json.dumps([TOOL]),
    }
    assert made.lineage == [calls]
    assert reasons(made.drops) == {with_text: "text_and_calls", not_first: "not_alternating"}
    reader = reader_of(line)
    assert reader is not None
    assert sum(1 for _ in reader(0).add(line)) >= 2  # `ltrain import` reads it again


def test_atif_has_steps_with_observations(talks: Talks, built: Built) -> None:
    shot = (SYSTEM, message("user", "2 + 2?"), message("assistant", "4"), message("user", "1 + 1?"))
    talk = talks("t1", 0, *shot)
    first = talk.answers("", CALL, tools=TOOLS)
    talk.hears(RESULT).answers("It is 2.", THOUGHT, tools=TOOLS)
    talk.ends(0.5)
    [line] = lines(converted(export_atif, built(), ExportOptions()))
    times = [step.pop("timestamp", None) for step in line["steps"]]
    assert [moment is not None for moment in times] == [False, False, False, False, True, True]
    call = {"tool_call_id": "a1", "function_name": "add", "arguments": {"x": 1}}
    sampled = {"llm_call_count": 1, "model_name": "helper"}
    assert line["steps"] == [
        {"step_id": 1, "source": "system", "message": "You help."},
        {"step_id": 2, "source": "user", "message": "2 + 2?"},
        {"step_id": 3, "source": "agent", "message": "4", "is_copied_context": True},
        {"step_id": 4, "source": "user", "message": "1 + 1?"},
        {
            "step_id": 5,
            "source": "agent",
            "message": "",
            "tool_calls": [call],
            "observation": {"results": [{"source_call_id": "a1", "content": "2"}]},
            **sampled,
        },
        {
            "step_id": 6,
            "source": "agent",
            "message": "It is 2.",
            "reasoning_content": "Easy.",
            **sampled,
        },
    ]
    assert (line["schema_version"], line["trajectory_id"]) == ("ATIF-v1.7", first)
    assert line["session_id"] == talk.execution
    assert line["agent"].pop("name")
    assert line["agent"] == {
        "version": "unknown",
        "model_name": "helper",
        "tool_definitions": OFFERED,
    }
    assert line["final_metrics"] == {"total_steps": 6}
    assert (line["extra"]["reward"], line["extra"]["task_id"]) == (0.5, "t1")


def test_atif_has_the_recorded_tokens(scene: Any, built: Built) -> None:
    rollout = scene.attempt("t1", 0)
    rollout.llm("write", (1, 2), (3, 4))
    rollout.evaluate(1.0)
    rollout.close()
    recipe = 'policy = [{ name = "sql" }]\nreward = [{ name = "a", evaluation = "reward" }]\n'
    dataset = built(f'source = {{ run = "demo" }}\n{recipe}')
    [line] = lines(converted(export_atif, dataset, ExportOptions()))
    metrics = line["steps"][-1]["metrics"]
    assert (metrics["prompt_token_ids"], metrics["completion_token_ids"]) == ([1, 2], [3, 4])
    assert len(metrics["logprobs"]) == 2


def test_a_folder_for_the_hub_has_a_card(calls: list[str], built: Built, tmp_path: Path) -> None:
    dataset, out = built(), tmp_path / "best-chats"
    options = ExportOptions(min=0.5, license="cc-by-4.0")
    manifest = export_dataset(dataset, "hf", options, out)
    assert manifest["lineage"] == [calls]
    [row] = datasets.load_dataset(str(out), cache_dir=str(tmp_path / "cache"))["train"]
    assert (row["reward"], row["task_id"]) == (1.0, "t1")
    assert json.loads(row["tools"]) == OFFERED
    assert row["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'
    assert row["messages"][-1]["reasoning_content"] == "Easy."
    card = DatasetCard.load(out / "README.md")
    assert (card.data.license, card.data.tags) == ("cc-by-4.0", ["ltrain", "agents", "traces"])
    assert f"from dataset `{dataset.id}`" in card.text
    assert '"min": 0.5' in card.text
    assert '"evaluation": "reward"' in card.text
    with pytest.raises(BadExport, match=r"is written as a folder, and .* has files"):
        export_dataset(dataset, "hf", options, out)
