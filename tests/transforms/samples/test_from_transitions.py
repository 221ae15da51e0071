import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.transforms.talk import Talk, message

from ltrain_transforms.datasets import derive
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.samples.row_filters import UNCHOSEN
from ltrain_transforms.tables import SAMPLES

ReadBack = Callable[[Any], pl.DataFrame]


def two_turns(scene: Any, second: tuple[int, ...]) -> Any:
    """Play a rollout of two calls, and a peer with another reward."""
    rollout = scene.attempt("t1", 0)
    rollout.llm("write", (1, 2, 3), (4, 5))
    rollout.tool(error="boom()")
    rollout.llm("rewrite", second, (8,))
    rollout.tool()
    rollout.evaluate(1.0)
    rollout.close()
    peer = scene.attempt("t1", 1)
    peer.llm("write", (1, 2, 3), (6,))
    peer.evaluate(0.0)
    peer.close()
    return rollout


def test_the_two_turn_task_gives_two_linked_rows(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    rollout = two_turns(scene, (2, 3, 30))
    samples = derive(read_back(scene), recipe).tables["samples"]
    first, second = (
        samples.filter(pl.col("execution_id") == rollout.execution)
        .sort(pl.col("next_sample_id").is_null())
        .to_dicts()
    )
    assert first["next_sample_id"] == second["sample_id"]
    assert second["next_sample_id"] is None
    outcome = pytest.approx(0.7071058, abs=1e-5)
    process = pytest.approx(0.7071058 - 0.1, abs=1e-5)
    assert (first["prompt_ids"], first["response_ids"]) == ([1, 2, 3], [4, 5])
    assert first["advantages"] == [process, process]
    assert first["token_rewards"] == pytest.approx([0.0, -0.2])
    assert (second["prompt_ids"], second["response_ids"]) == ([2, 3, 30], [8])
    assert second["advantages"] == [outcome]
    assert first["rollout_logprobs"] == [-0.5, -0.5]
    assert (first["tokens"], first["temperature"], first["policy"]) == ("sampled", 1.0, "sql")
    assert (first["call_versions"], first["call_offsets"]) == ([0], [0])


def test_completions_are_trained_like_chats(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    for sample, reward in enumerate((1.0, 0.0)):
        rollout = scene.attempt("t1", sample)
        rollout.llm(
            "write", (1, 2, 3), (4, 5), gateway={"gen_ai.operation.name": "text_completion"}
        )
        rollout.evaluate(reward)
        rollout.close()
    samples = derive(read_back(scene), recipe).tables["samples"]
    assert samples["response_ids"].to_list() == [[4, 5], [4, 5]]


def test_a_prompt_that_continues_the_tokens_gives_one_row(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    rollout = two_turns(scene, (1, 2, 3, 4, 5, 30))
    samples = derive(read_back(scene), recipe).tables["samples"]
    (row,) = samples.filter(pl.col("execution_id") == rollout.execution).to_dicts()
    assert samples.schema == SAMPLES.schema
    assert row["response_ids"] == [4, 5, 30, 8]
    assert row["response_mask"] == [1, 1, 0, 1]
    third = pytest.approx(1 / 3)
    assert row["loss_weight"] == [third, third, 0.0, third]
    assert row["call_offsets"] == [0, 3]
    assert len(row["transition_ids"]) == 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("gateway", "ids", "reason"),
    [
        ({}, False, "no_tokens"),
        ({"ltrain.prompt_token_count": 9}, True, "no_tokens"),
        ({"ltrain.delivered": False}, True, "undelivered"),
        ({"ltrain.constrained": True}, True, "constrained"),
        ({"gen_ai.request.temperature": 0.0}, True, "greedy"),
        ({"ltrain.policy.version": "?"}, True, "no_version"),
    ],
)
def test_a_call_without_usable_tokens_is_a_drop_and_changes_no_advantage(
    scene: Any,
    read_back: ReadBack,
    recipe: Recipe,
    gateway: dict[str, Any],
    ids: bool,
    reason: str,
) -> None:
    for sample in range(2):
        rollout = scene.attempt("t1", sample)
        call = rollout.llm(gateway=gateway if sample else {}, ids=ids or not sample)
        rollout.evaluate(float(sample))
        rollout.close()
    tables = derive(read_back(scene), recipe).tables
    rows = tables["drops"].filter(pl.col("stage") == "rows").select("id", "reason").rows()
    assert rows == [(call, reason)]
    assert sorted(tables["transitions"]["advantage"]) == pytest.approx([-0.7071058, 0.7071058])
    assert tables["samples"].height == 1


def test_several_choices_and_long_rows_are_drops(
    scene: Any, read_back: ReadBack, recipe_file: Path
) -> None:
    choices = {
        "ltrain.response_token_ids": "[[4],[5]]",
        "ltrain.response_logprobs": '["AAAAvw==","AAAAvw=="]',
    }
    first, second = scene.attempt("t1", 0), scene.attempt("t1", 1)
    several = first.llm(gateway=choices)
    long = second.llm("write", range(9), (1, 2))
    for value, rollout in enumerate((first, second)):
        rollout.evaluate(float(value))
        rollout.close()
    recipe_file.write_text(recipe_file.read_text() + "[filter]\nmax_tokens = 10\n")
    drops = derive(read_back(scene), Recipe.load(recipe_file)).tables["drops"]
    rows = drops.filter(pl.col("stage") == "rows").select("id", "reason").rows()
    assert dict(rows) == {several: "several_choices", long: "too_long"}


def test_the_choice_that_the_agent_continued_with_is_trained() -> None:
    user, third = message("user", "1 + 1?"), message("user", "sure?")
    wrong, right = message("assistant", "3"), message("assistant", "2")
    several: dict[str, Any] = {
        "response_token_ids": [[4], [5, 6], [7]],
        "response_logprobs": [[-0.5], [-0.25, -0.125], [-1.0]],
        "output": json.dumps([wrong, right, wrong]),
    }
    talk = Talk()
    talk.call((1, 2), (), messages=[user], choice=1, **several)
    talk.call((1, 2, 5, 6, 3), (8,), messages=[user, right, third], answer=right)
    rows, drops = talk.samples()
    assert rows["response_ids"].to_list() == [[5, 6, 3, 8]]
    assert rows["rollout_logprobs"].to_list() == [[-0.25, -0.125, 0.0, -0.5]]
    assert rows["transition_ids"].to_list() == [["c0", "c1"]]
    (sentence,) = UNCHOSEN.values()
    assert drops.rows() == [
        ("rows", "c0:0", "unchosen", sentence),
        ("rows", "c0:2", "unchosen", sentence),
    ]


def test_only_the_recipes_agents_are_trained_and_others_are_environment(
    scene: Any, read_back: ReadBack, recipe: Recipe
) -> None:
    for sample in range(2):
        rollout = scene.attempt("t1", sample)
        rollout.llm("judge")
        call = rollout.llm("write")
        rollout.evaluate(float(sample))
        rollout.close()
    tables = derive(read_back(scene), recipe).tables
    assert tables["samples"].height == 2
    assert call in tables["samples"]["transition_ids"].explode().to_list()
    assert tables["drops"].is_empty()
