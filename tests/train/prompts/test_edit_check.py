"""Which answers of a critic become candidates, and why others do not."""

import pytest

from ltrain_instrument.prompts import Prompt
from ltrain_train.prompts.edit_check import MAX_CHARACTERS, Drop, extract_prompt, find_drop

PARENT = Prompt('Answer {question} as {"answer": 1}.', 0)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("<prompt>\nNew {question}\n</prompt>", "New {question}"),
        ("Sure!\n<prompt>a</prompt> done", "a"),
        ("<prompt>a <prompt> b</prompt></prompt>", "a <prompt> b</prompt>"),
        ("<prompt> </prompt>", None),
        ("no tags", None),
        ("</prompt>a<prompt>", None),
        ("<prompt>never closed", None),
    ],
)
def test_a_prompt_is_what_is_between_the_tags(answer: str, text: str | None) -> None:
    assert extract_prompt(answer) == text


@pytest.mark.parametrize(
    ("text", "drop"),
    [
        (None, Drop.NO_PROMPT),
        ("Answer.", Drop.LOST_SLOT),
        ("Answer {Question}.", Drop.LOST_SLOT),
        ("Answer {question} and {more}.", Drop.NEW_SLOT),
        ("{question}" + "x" * MAX_CHARACTERS, Drop.TOO_LONG),
        ("Known {question}", Drop.DUPLICATE),
        ('{question}, {question} as {"answer": {}} {0}', None),
    ],
)
def test_a_candidate_keeps_the_slots_and_is_new(text: str | None, drop: Drop | None) -> None:
    assert find_drop(text, PARENT, {"Known {question}"}) is drop
