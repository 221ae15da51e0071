"""Row filters: each reason to drop a call, their order, and the reasons a recipe may allow."""

import json
from typing import Any

import pytest
from tests.transforms.talk import Talk, message, recipe

from ltrain_transforms import rendering
from ltrain_transforms.samples.row_filters import REASONS

CASES: dict[str, dict[str, Any]] = {
    "without_key": {"token_source": "traffic"},
    "untrusted_tokens": {"token_source": "capture"},
    "redacted": {"redacted": True},
    "truncated": {"truncated": True},
    "multimodal": {
        "messages": [message("user", "", {"type": "image_url", "image_url": {"url": "x"}})]
    },
    "no_tokens": {"response_token_ids": None},
    "several_choices": {"response_token_ids": [[3], [4]], "response_logprobs": [[-0.5], [-0.5]]},
    "no_logprobs": {"response_logprobs": None},
    "undelivered": {"delivered": False},
    "constrained": {"constrained": True},
    "greedy": {"temperature": 0.0},
    "filtered": {"params": '{"temperature": 1.0, "top_p": 0.9}'},
    "no_version": {"policy_version": None},
    "too_long": {"prompt_token_ids": list(range(99))},
}


def test_every_reason_has_a_case() -> None:
    assert CASES.keys() | rendering.REASONS.keys() == REASONS.keys()


@pytest.mark.parametrize("reason", CASES)
def test_an_unusable_call_is_a_drop_with_a_sentence(reason: str) -> None:
    talk = Talk()
    talk.call((1, 2), (3,))
    talk.call((1, 2), (4,), **CASES[reason])
    rows, drops = talk.samples(recipe(filter={"max_tokens": 50}))
    assert rows["transition_ids"].to_list() == [["c0"]]
    assert drops.rows() == [("rows", "c1", reason, REASONS[reason])]


def test_rewards_of_calls_that_are_left_out_go_to_the_call_before_for_a_critic() -> None:
    """The rewards are 0, -1, -2 and so on; the last call has the outcome."""
    talk = Talk()
    for number in range(5):
        cells = CASES["greedy"] if number in (0, 2, 4) else {}
        talk.call((number, 2), (3,), **cells)
    talk.call((1, 2), (3,), execution="e2")
    plain, _ = talk.samples()
    assert plain["token_rewards"].to_list() == [[-1.0], [-3.0], [-5.0]]
    rows, drops = talk.samples(recipe(credit={"outcome": {"estimator": "gae"}}))
    assert rows["transition_ids"].to_list() == [["c1"], ["c3"], ["c5"]]
    assert rows["token_rewards"].to_list() == [[-3.0], [-7.0], [-5.0]]
    assert rows["call_positions"].to_list() == [[1], [3], [5]]
    assert drops["id"].to_list() == ["c0", "c2", "c4"]


def test_a_recipe_may_trust_token_ids_of_the_agents_process() -> None:
    talk = Talk()
    talk.call((1, 2), (4,), token_source="capture")
    trusting = {"name": "sql", "token_source": "capture"}
    rows, drops = talk.samples(recipe(policy=[trusting]))
    assert (rows.height, drops.height) == (1, 0)


@pytest.mark.parametrize(
    "reason", ["redacted", "truncated", "undelivered", "constrained", "no_version"]
)
def test_a_recipe_may_allow_a_reason(reason: str) -> None:
    talk = Talk()
    talk.call((1, 2), (4,), **CASES[reason])
    rows, drops = talk.samples(recipe(filter={"allow": [reason]}))
    assert (rows.height, drops.height) == (1, 0)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"redacted": True, "prompt_token_ids": None, "response_token_ids": None}, "redacted"),
        ({"prompt_token_ids": []}, "no_tokens"),
        ({"response_token_ids": [[]], "response_logprobs": [[]]}, "no_tokens"),
        ({"response_token_ids": []}, "no_tokens"),
        ({"response_logprobs": [[-0.5, -0.5]]}, "no_logprobs"),
        ({"response_logprobs": [[float("nan")]]}, "no_logprobs"),
        ({"response_logprobs": [[float("-inf")]]}, "no_logprobs"),
        ({"response_logprobs": []}, "no_logprobs"),
    ],
)
def test_invalid_ids_and_log_probabilities_are_drops(cells: dict[str, Any], reason: str) -> None:
    talk = Talk()
    talk.call((1, 2), (4,), **cells)
    assert talk.samples()[1]["reason"].to_list() == [reason]


@pytest.mark.parametrize(
    ("params", "filtered"),
    [
        ({"top_p": 0.9}, True),
        ({"top_p": 1}, False),
        ({"top_k": 20}, True),
        ({"top_k": -1}, False),
        ({"top_k": 0}, False),
        ({"min_p": 1e-05}, True),
        ({"min_p": 0.0}, False),
        ({"min_tokens": 5}, True),
        ({"presence_penalty": -0.5}, True),
        ({"frequency_penalty": 0.5}, True),
        ({"frequency_penalty": 0}, False),
        ({"repetition_penalty": 1.1}, True),
        ({"repetition_penalty": 1.0, "max_tokens": 9, "seed": 3}, False),
        ({"extra_body": {"min_p": 0.1}}, True),
        ({"top_p": "0.5"}, True),
        ({"top_p": None, "stop": ['"top_p": 0.5']}, False),
        (None, False),
    ],
)
def test_sampling_that_cannot_be_replayed_is_filtered(
    params: dict[str, Any] | None, filtered: bool
) -> None:
    talk = Talk()
    talk.call((1, 2), (4,), params=params and json.dumps(params, sort_keys=True))
    _, drops = talk.samples(recipe(filter={"allow": ["constrained"]}))
    assert drops["reason"].to_list() == ["filtered"] * filtered


def test_missing_flags_drop_nothing() -> None:
    talk = Talk()
    talk.call((1, 2), (4,), constrained=None, delivered=None, redacted=None, truncated=None)
    assert talk.samples()[0].height == 1


PARTS = [
    {"type": "blob", "mime_type": "image/png", "content": "aGk="},
    {"type": "uri", "modality": "audio", "uri": "s3://x"},
    {"type": "image", "source": {}},
    {"type": "input_audio", "input_audio": {}},
    {"type": "input_image", "image_url": "x"},
    {"type": "video_url", "video_url": {}},
    {"type": "file", "file": {}},
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: str(part["type"]))
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["dense", "spaced"])
def test_parts_other_than_text_are_multimodal(
    part: dict[str, Any], separators: tuple[str, str]
) -> None:
    talk = Talk()
    text = json.dumps([message("user", "what is this", part)], separators=separators)
    talk.call((1, 2), (4,), input=text)
    assert talk.samples()[1]["reason"].to_list() == ["multimodal"]


@pytest.mark.parametrize(
    "text", ['an image, "type": "image"', '{"type": "image_url"}', "modality", "file"]
)
def test_text_about_images_is_text(text: str) -> None:
    talk = Talk()
    talk.call((1, 2), (4,), messages=[message("user", text)])
    assert talk.samples()[0].height == 1
