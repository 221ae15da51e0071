"""Rows rendered with a chat template, and the prompts of verl, each read by its consumer."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.transforms.exports.conftest import Talking, Talks, converted, message, question
from tokenizers import Tokenizer

from ltrain_transforms.datasets import Dataset
from ltrain_transforms.exports import ExportOptions
from ltrain_transforms.exports.rendered import export_rendered
from ltrain_transforms.exports.verl import export_verl
from ltrain_transforms.rendering import BadTokenizer
from ltrain_transforms.tables import SAMPLES

Built = Callable[..., Dataset]


def decode(folder: Path, ids: list[int]) -> str:
    read = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return str(read.decode(ids, skip_special_tokens=False))


def two_turns(talks: Talks, *, thinking: str = "") -> None:
    for sample in range(2):
        talk = talks("t1", sample, *question("1 + 1?"))
        talk.answers(f"{thinking}2")
        talk.hears(message("user", "sure?")).answers("yes" if sample else "no")
        talk.ends(float(sample))


def test_a_conversation_becomes_a_row_marked_as_rendered(
    talks: Talks, built: Built, tokenizer: Path
) -> None:
    two_turns(talks)
    made = converted(export_rendered, built(), ExportOptions(tokenizer=tokenizer, best=1))
    assert isinstance(made.rows, pl.DataFrame)
    assert made.rows.schema == SAMPLES.schema
    (row,) = made.rows.to_dicts()
    assert row["tokens"] == "rendered"
    assert decode(tokenizer, row["prompt_ids"]).endswith(
        "user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n"
    )
    trained = [i for i, m in zip(row["response_ids"], row["response_mask"], strict=True) if m]
    assert decode(tokenizer, trained) == "2<|im_end|>yes<|im_end|>"
    assert set(row["rollout_logprobs"]) == {0.0}
    assert made.lineage == [row["transition_ids"]]
    assert made.drops["reason"].to_list() == ["not_best"]


def test_thinking_that_the_template_strips_makes_two_rows(
    talks: Talks, built: Built, tokenizer: Path
) -> None:
    two_turns(talks, thinking="<think>\none\n</think>\n\n")
    frame = converted(export_rendered, built(), ExportOptions(tokenizer=tokenizer, best=1)).rows
    assert isinstance(frame, pl.DataFrame)
    assert frame["begins"].to_list() == ["first", "template"]


def test_the_learner_refuses_rendered_rows(
    talks: Talks, built: Built, tokenizer: Path, tmp_path: Path
) -> None:
    from ltrain_train.errors import BadSamples
    from ltrain_train.learner.samples import read_rows

    two_turns(talks)
    frame = converted(export_rendered, built(), ExportOptions(tokenizer=tokenizer)).rows
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(tmp_path / "samples.parquet")
    with pytest.raises(BadSamples, match="tokens are rendered, not sampled: an RL loss needs"):
        read_rows(tmp_path / "samples.parquet", vocab_size=1000)


def test_a_folder_without_tokenizer_or_template_is_an_error(
    talks: Talks, built: Built, tokenizer: Path, tmp_path: Path
) -> None:
    two_turns(talks)
    dataset = built()
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in (None, tmp_path / "absent"):
        with pytest.raises(BadTokenizer, match="--tokenizer DIR"):
            converted(export_rendered, dataset, ExportOptions(tokenizer=path))
    with pytest.raises(BadTokenizer, match="holds no tokenizer"):
        converted(export_rendered, dataset, ExportOptions(tokenizer=bare))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_text((tokenizer / name).read_text())
    with pytest.raises(BadTokenizer, match="has no chat template"):
        converted(export_rendered, dataset, ExportOptions(tokenizer=bare))


def test_what_the_template_renders_otherwise_is_left_out_by_name(
    talks: Talks, built: Built, tokenizer: Path, tmp_path: Path
) -> None:
    two_turns(talks)
    other = tmp_path / "other"
    other.mkdir()
    for path in tokenizer.iterdir():
        (other / path.name).write_text(path.read_text())
    backwards = "{% for m in messages | reverse %}{{ m.content }}{% endfor %}"
    (other / "chat_template.jinja").write_text(backwards)
    made = converted(export_rendered, built(), ExportOptions(tokenizer=other))
    assert len(made.rows) == 0
    assert set(made.drops["reason"]) == {"not_rendered"}


def test_verls_own_dataset_reads_the_prompts(
    talks: Talks, built: Built, tokenizer: Path, tmp_path: Path
) -> None:
    two_turns(talks)
    other = talks("t2", 0, *question("2 + 2?"))
    other.answers("4")
    other.ends(1.0)
    made = converted(export_verl, built(), ExportOptions())
    assert isinstance(made.rows, pl.DataFrame)
    made.rows.write_parquet(tmp_path / "prompts.parquet")
    script = Path(__file__).with_name("read_prompts.py")
    arguments = [str(tmp_path / "prompts.parquet"), str(tokenizer), str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    read: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    expected = [{"role": "system", "content": "You help."}, {"role": "user", "content": "1 + 1?"}]
    assert sorted(item["raw_prompt"][1]["content"] for item in read) == ["1 + 1?", "2 + 2?"]
    first = next(item for item in read if item["extra_info"]["task_id"] == "t1")
    assert first["raw_prompt"] == expected
    assert (first["data_source"], first["ability"]) == ("demo", "db")
    assert first["reward_model"] == {"style": "rule", "ground_truth": ""}
    assert sorted(item["index"] for item in read) == [0, 1]
    assert sorted(map(len, made.lineage)) == [1, 2]


def test_a_prompt_with_tool_calls_is_a_drop(talks: Talks, built: Built) -> None:
    call = {"type": "tool_call", "id": "1", "name": "add", "arguments": "{}"}
    talk = talks("t1", 0, *question("1 + 1?"), message("assistant", "", call))
    talk.answers("2")
    execution = talk.ends(1.0).execution
    made = converted(export_verl, built(), ExportOptions())
    assert made.drops.select("id", "reason").rows() == [(execution, "not_plain")]


def test_messages_that_the_template_refuses_are_drops(
    talks: Talks, built: Built, tokenizer: Path, tmp_path: Path
) -> None:
    for sample, messages in enumerate(
        ((message("assistant", "I begin"), message("user", "no")), question("1 + 1?"))
    ):
        talk = talks("t1", sample, *messages)
        talk.answers("2")
        talk.ends(1.0)
    strict = tmp_path / "strict"
    shutil.copytree(tokenizer, strict)
    template = strict / "chat_template.jinja"
    refusal = "{%- if messages[0].role == 'assistant' -%}{{ raise_exception('no') }}{%- endif -%}"
    template.write_text(refusal + template.read_text())
    made = converted(export_rendered, built(), ExportOptions(tokenizer=strict))
    assert len(made.lineage) == 1
    assert "not_rendered" in made.drops["reason"].to_list()


def sampled_and_spoken(scene: Any) -> Any:
    """Add a rollout whose first call the gateway recorded, and whose second has only messages."""
    attempt = scene.attempt()
    first = {"role": "user", "parts": [{"type": "text", "content": "question"}]}
    attempt.llm(
        prompt=(5, 6), response=(7, 8), gateway={"ltrain.policy.name": "helper"}, text="answer"
    )
    talk = Talking(attempt).hears(first, message("assistant", "answer"), message("user", "sure?"))
    talk.answers("yes")
    return talk.ends(1.0)


def test_tokens_that_the_gateway_recorded_are_kept(
    scene: Any, built: Built, tokenizer: Path
) -> None:
    sampled_and_spoken(scene)
    dataset = built()
    options = ExportOptions(policy="helper", tokenizer=tokenizer)
    frame = converted(export_rendered, dataset, replace(options, recorded=True)).rows
    assert isinstance(frame, pl.DataFrame)
    rows = frame.sort("tokens").to_dicts()
    assert [row["tokens"] for row in rows] == ["rendered", "sampled"]
    assert (rows[1]["prompt_ids"], rows[1]["response_ids"]) == ([5, 6], [7, 8])
    assert decode(tokenizer, rows[0]["response_ids"]) == "yes<|im_end|>"
    everything = converted(export_rendered, dataset, options).rows
    assert isinstance(everything, pl.DataFrame)
    assert set(everything["tokens"]) == {"rendered"}


def test_a_row_that_is_longer_than_the_model_allows_is_a_drop(
    talks: Talks, built: Built, tokenizer: Path
) -> None:
    two_turns(talks)
    dataset, options = built(), ExportOptions(tokenizer=tokenizer, best=1)
    whole = converted(export_rendered, dataset, options).rows
    assert isinstance(whole, pl.DataFrame)
    first_call = len(whole["prompt_ids"][0]) + 2
    made = converted(export_rendered, dataset, replace(options, max_tokens=first_call))
    assert sorted(made.drops["reason"]) == ["not_best", "too_long"]
    assert len(made.lineage) == 1


def test_how_another_model_was_sampled_drops_no_rendered_row(
    scene: Any, built: Built, tokenizer: Path
) -> None:
    talk = Talking(scene.attempt()).hears(*question("1 + 1?"))
    talk.answers("2")
    talk.attempt.spans[-1].attributes |= {
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.temperature": 0.0,
    }
    talk.ends(1.0)
    made = converted(export_rendered, built(), ExportOptions(tokenizer=tokenizer))
    assert (len(made.lineage), made.drops.height) == (1, 0)
