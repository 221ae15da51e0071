"""Ids and log-probabilities decode to what a JSON parser and `struct` read, whatever the text."""

import json
from base64 import b64encode
from itertools import accumulate
from struct import pack, unpack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltrain_transforms.calls.tokens import id_choices, id_lists, logprob_choices

ID = st.integers(0, 2**32 - 1) | st.integers(0, 200_000)
LISTS = st.lists(ID, max_size=300)


@given(st.lists(st.none() | LISTS, max_size=140), st.sampled_from([",", ", "]))
def test_ids_are_what_json_says(given_lists: list[list[int] | None], separator: str) -> None:
    texts = [
        None if one is None else json.dumps(one, separators=(separator, ":")) for one in given_lists
    ]
    assert id_lists(texts).to_list() == given_lists


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("[]", []),
        ("[0]", [0]),
        ("[99999999,100000000,4294967295]", [99999999, 100000000, 4294967295]),
        ("[4294967296]", None),
        ("[1,2", None),
        ("1,2]", None),
        ("[1,,2]", None),
        ("[,]", None),
        ("[", None),
        ("[1.5]", None),
        ("[-1]", None),
        ("[true]", None),
        ('["1"]', None),
        ("[[1]]", None),
        ("null", None),
        ("", None),
    ],
)
def test_what_is_no_list_of_ids_is_none_and_spoils_no_neighbour(
    text: str, read: list[int] | None
) -> None:
    assert id_lists(["[7]", text, "[8,9]"]).to_list() == [[7], read, [8, 9]]


@given(st.lists(LISTS, min_size=1, max_size=5))
def test_prompts_that_continue_each_other_are_read_whole(turns: list[list[int]]) -> None:
    prompts = list(accumulate(turns))
    texts = [json.dumps(prompt, separators=(",", ":")) for prompt in prompts]
    assert id_lists(texts).to_list() == prompts


@given(st.lists(st.text("[],12 ", max_size=6), max_size=6))
def test_a_text_is_read_alike_whatever_stands_before_it(texts: list[str]) -> None:
    longer = list(accumulate(texts, lambda before, text: f"{before[:-1]},{text}"))
    every = [*texts, *longer]
    assert id_lists(every).to_list() == [id_lists([text]).to_list()[0] for text in every]


def test_an_invalid_end_makes_no_list_of_a_longer_text() -> None:
    texts = ["[1]", "[1,]", "[]", "[,1]", "[ ]", "[ ,1]", "[2", "[2,3]", "[2,3,4],[5]", "[2,3,4]"]
    read = [[1], None, [], None, [], None, None, [2, 3], None, [2, 3, 4]]
    assert id_lists(texts).to_list() == read


@given(st.lists(st.lists(LISTS, min_size=1, max_size=3), min_size=1, max_size=5))
def test_choices_are_kept_apart(several: list[list[list[int]]]) -> None:
    texts = [json.dumps(one[0] if len(one) == 1 else one, separators=(",", ":")) for one in several]
    assert id_choices(texts).to_list() == several


FLOATS = st.lists(st.floats(-30, 0, width=32), max_size=200)


def encoded(values: list[float]) -> str:
    return b64encode(pack(f"<{len(values)}f", *values)).decode()


@given(st.lists(st.none() | FLOATS, max_size=20))
def test_log_probabilities_are_what_was_packed(given_lists: list[list[float] | None]) -> None:
    texts = [None if one is None else encoded(one) for one in given_lists]
    wanted = [None if one is None else [one] for one in given_lists]
    assert logprob_choices(texts).to_list() == wanted


def test_log_probabilities_in_their_other_spellings() -> None:
    texts = ["[-0.5, -1]", json.dumps([encoded([-0.5]), encoded([-1.0])]), encoded([-0.25])]
    assert logprob_choices(texts).to_list() == [[[-0.5, -1.0]], [[-0.5], [-1.0]], [[-0.25]]]


@pytest.mark.parametrize("text", ["AAA", "AAAA!w==", "AAAAvw", '["AAA"]', "[null]", "{}"])
def test_what_is_no_list_of_floats_is_none(text: str) -> None:
    assert logprob_choices([encoded([-0.5]), text]).to_list() == [[[-0.5]], None]


def test_numbers_are_little_endian_float32() -> None:
    values: Any = logprob_choices(["zczMvQ=="])[0]
    assert values.to_list() == [[unpack("<f", b"\xcd\xcc\xcc\xbd")[0]]]
