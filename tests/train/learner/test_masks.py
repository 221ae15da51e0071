"""Constrained tokens train under the masks that the policy server had."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xgrammar
from tests.train.learner.conftest import TRAIN
from tests.train.learner.test_sharing import compare_paths
from tests.train.tiny import WORDS

from ltrain_train.errors import BadSamples
from ltrain_train.learner.client import LearnerClient
from ltrain_train.learner.masks import MASKED, apply_masks, grammars, replay
from ltrain_train.learner.objective import Objective
from ltrain_train.learner.samples import read_rows
from ltrain_train.policy import Constraint

pytestmark = pytest.mark.xdist_group("learner")
Rows = list[dict[str, Any]]
CHOICES = Constraint(kind="regex", spec="(w1|w2|w3|w4w5){2,4}").model_dump_json()
LETTERS = Constraint(kind="regex", spec="w1[0-9]?w(2|3)[0-9]{0,2}").model_dump_json()


@cache
def words(model: Path) -> int:
    return grammars(model).vocab_size


def draw_answer(model: Path, constraint: str, draw: random.Random) -> list[int]:
    """Return ids that a grammar allows, up to its end."""
    matcher = grammars(model).matcher(Constraint.model_validate_json(constraint))
    mask, ids = xgrammar.allocate_token_bitmask(1, words(model)), []
    while not matcher.is_terminated():
        matcher.fill_next_token_bitmask(mask)
        bits = np.unpackbits(mask.numpy().view(np.uint8)[0], bitorder="little")
        ids.append(draw.choice(np.flatnonzero(bits[: words(model)]).tolist()))
        assert matcher.accept_token(ids[-1])
    return ids


def constrain(model: Path, rows: Rows, seed: int = 0) -> Rows:
    """Return the rows with two calls each, most of them constrained, and a word between the two."""
    draw = random.Random(seed)
    plans = [(CHOICES, None), (LETTERS, CHOICES), (CHOICES, LETTERS), (None, None)]
    for number, row in enumerate(rows):
        plan = plans[number % len(plans)]
        answers = [
            draw_answer(model, each, draw) if each else [draw.randrange(500) for _ in range(3)]
            for each in plan
        ]
        ids = [*answers[0], 7, *answers[1]]
        mask = [1] * len(answers[0]) + [0] + [1] * len(answers[1])
        row |= {
            "response_ids": ids,
            "response_mask": mask,
            "call_offsets": [0, len(answers[0]) + 1],
            "call_constraints": list(plan),
            "call_versions": [0, 0],
            "call_positions": [0, 1],
            "rollout_logprobs": [m * draw.uniform(-1.2, -0.8) for m in mask],
            "advantages": [m * draw.uniform(-2, 2) for m in mask],
            "token_rewards": [0.0] * len(ids),
            "loss_weight": [m * draw.uniform(0.1, 3.0) for m in mask],
        }
    return rows


def flat(rows: list[list[float]]) -> list[float]:
    return [x for row in rows for x in row]


def test_masked_tokens_train_as_in_plain_torch(
    learner: LearnerClient,
    tiny: Path,
    make_rows: Callable[..., Rows],
    write: Callable[[Rows], Path],
    reference: Callable[..., dict[str, Any]],
) -> None:
    samples = write(constrain(tiny, make_rows(16)))
    objective = Objective.from_train(TRAIN.model_copy(update={"entropy_coefficient": 0.1}))
    wide = replace(objective, drift_limit=100.0)
    before = learner.log_probs(samples)
    assert flat(before) == pytest.approx(flat(reference(tiny, samples)["log_probs"]), abs=1e-5)
    expected = reference(tiny, samples, steps=1, lr=1e-3, entropy=0.1)
    report = learner.step(samples, wide, version=0)
    assert report.metrics["loss"] == pytest.approx(expected["loss"][0], abs=1e-6)
    assert report.metrics["grad_norm"] == pytest.approx(expected["grad_norm"][0], rel=1e-4)
    assert flat(learner.log_probs(samples)) == pytest.approx(flat(expected["log_probs"]), abs=1e-4)


@pytest.mark.nightly
def test_ranks_that_share_rows_mask_their_own_tokens(
    tiny: Path,
    make_rows: Callable[..., Rows],
    write: Callable[[Rows], Path],
    reference: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    samples = write(constrain(tiny, make_rows(16)))
    train = TRAIN.model_copy(update={"sequence_ranks": 2})
    with LearnerClient(train, tiny, directory=tmp_path, policy="p", ranks=2) as learner:
        found = learner.log_probs(samples)
    assert flat(found) == pytest.approx(flat(reference(tiny, samples)["log_probs"]), abs=1e-5)


def test_masks_are_equal_in_the_prefix_tree(
    tiny: Path, make_rows: Callable[..., Rows], write: Callable[[Rows], Path]
) -> None:
    """Rows with the same ids and other constraints share the model's work, and no distribution."""
    rows = constrain(tiny, make_rows(8))
    other = rows[0] | {"sample_id": "free", "call_constraints": [None, None]}
    train = {"dtype": "fp32", "learning_rate": 1e-3, "tokens_per_micro_batch": 128}
    [result] = compare_paths(
        tiny, write([*rows, other]), [train | {"lora_rank": 0, "entropy_coefficient": 0.1}]
    )
    assert (result["plain"]["engine"], result["tree"]["engine"]) == ("RowsEngine", "TreeEngine")
    assert result["log_probs"] < 1e-5
    assert result["entropy"] < 1e-5
    assert result["gradient"] < 1e-5


def test_a_call_with_an_id_outside_its_mask_is_left_out(
    learner: LearnerClient,
    tiny: Path,
    make_rows: Callable[..., Rows],
    write: Callable[[Rows], Path],
) -> None:
    rows = constrain(tiny, make_rows(8))
    rows[0]["response_ids"][0] = 400
    wide = replace(Objective.from_train(TRAIN), drift_limit=100.0)
    report = learner.step(write(rows), wide, version=0)
    lost = rows[0]["call_offsets"][1] - 1
    assert report.trained_tokens == sum(sum(row["response_mask"]) for row in rows) - lost
    [warning] = [each for each in report.warnings if "constrained" in each]
    assert warning.startswith("1 constrained call was left out of the loss")


def test_rows_without_a_list_of_constraints_are_free(
    tiny: Path, make_rows: Callable[..., Rows], write: Callable[[Rows], Path]
) -> None:
    rows = constrain(tiny, make_rows(4))
    for row in rows:
        row["call_constraints"] = None
    read = read_rows(write(rows), vocab_size=words(tiny))
    assert read["call_constraints"].to_list() == [[None, None]] * 4


def test_constraints_of_other_calls_are_refused(
    tiny: Path, make_rows: Callable[..., Rows], write: Callable[[Rows], Path]
) -> None:
    rows = constrain(tiny, make_rows(1))
    rows[0]["call_constraints"] = [CHOICES]
    with pytest.raises(BadSamples, match="call_constraints must be as long as call_offsets"):
        read_rows(write(rows), vocab_size=words(tiny))


def test_tokens_after_the_end_of_a_grammar_are_free(tiny: Path) -> None:
    ids = np.array([9, 1, 2, 513 + 1, 8, 9])
    end = grammars(tiny)
    stop = next(iter(end.stop_token_ids))
    ids[3] = stop
    masks = replay(
        tiny, ids, np.array([-1, 0, 0, 0, 0, 0]), np.array([1, 0, 0, 0, 0, 0]), [CHOICES]
    )
    assert masks.refused == []
    assert masks.of_token_T.tolist()[0] == -1
    assert min(masks.of_token_T.tolist()[1:4]) >= 0
    assert masks.of_token_T.tolist()[4:] == [-1, -1]


THINKING = Constraint(
    kind="regex", spec="w1w2", reasoning_end="<sep>", tool_start="w1"
).model_dump_json()
LETTER, TOOL, NEXT, END, SEP = 9, 1, 2, WORDS + 3, WORDS + 4
"""Ids of the tiny model: w9, w1, w2, `</s>` and `<sep>`."""


@pytest.mark.parametrize(
    ("ids", "masked", "refused"),
    [
        ([LETTER, NEXT, SEP, TOOL, NEXT, END], 3, []),
        ([SEP, TOOL, NEXT, END], 1, []),
        ([LETTER, TOOL, NEXT, END], 2, []),
        ([LETTER, NEXT, LETTER], 3, []),
        ([LETTER, SEP], 2, []),
        ([LETTER, SEP, NEXT], 3, [2]),
    ],
)
def test_tokens_until_the_end_of_the_reasoning_are_free(
    tiny: Path, ids: list[int], masked: int, refused: list[int]
) -> None:
    """A tool call ends the reasoning too: its first token is free, and the grammar accepts it."""
    count = len(ids)
    masks = replay(
        tiny, np.array(ids), np.zeros(count, int), np.eye(1, count, dtype=int)[0], [THINKING]
    )
    assert masks.refused == refused
    assert (masks.of_token_T >= 0).tolist() == [position >= masked for position in range(count)]


def test_a_call_whose_reasoning_ends_with_an_unknown_token_is_left_out(tiny: Path) -> None:
    unknown = Constraint(kind="regex", spec="w1w2", reasoning_end="</think>").model_dump_json()
    masks = replay(tiny, np.array([9, 1]), np.array([0, 0]), np.array([1, 0]), [unknown])
    assert masks.refused == [0]
    assert masks.of_token_T.tolist() == [-1, -1]


def test_masks_are_applied_a_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ltrain_train.learner.masks.BLOCK_ELEMENTS", 100)
    logits, masks = torch.randn(7, 50), torch.tensor([0, -1, 1, 1, -1, 0, 1])
    allowed = torch.rand(2, 64) > 0.5
    packed = np.packbits(allowed.numpy(), axis=1, bitorder="little").view(np.int32)
    expected = logits.clone()
    for row, mask in enumerate(masks.tolist()):
        if mask >= 0:
            expected[row, ~allowed[mask][:50]] = MASKED
    apply_masks(logits, masks, torch.from_numpy(packed))
    assert torch.equal(logits, expected)
