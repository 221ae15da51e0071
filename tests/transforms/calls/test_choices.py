"""The choice of several that the agent continued with, by the messages of later calls."""

import json
from typing import Any

import polars as pl
import pytest
from tests.transforms.talk import message

from ltrain_transforms.calls.from_spans import continued_choices
from ltrain_transforms.tables import CALLS

QUESTION = message("user", "1 + 1?")
TWO, THREE = message("assistant", "2"), message("assistant", "3")
THOUGHT = {"type": "reasoning", "content": "let me see"}


def frame(*calls: dict[str, Any]) -> pl.DataFrame:
    rows = [
        {
            **dict.fromkeys(CALLS.schema),
            **{"execution_id": "e1", "kind": "llm", "seq": number},
            **{name: json.dumps(call[name]) for name in ("input", "output") if name in call},
            "response_token_ids": call.get("ids", [[9]]),
            **call.get("cells", {}),
        }
        for number, call in enumerate(calls)
    ]
    return pl.DataFrame(rows, CALLS.schema)


def later(*history: dict[str, Any], **cells: Any) -> dict[str, Any]:
    return {"input": [QUESTION, *history, message("user", "sure?")], "cells": cells}


ANSWER = {"input": [QUESTION], "output": [TWO, THREE], "ids": [[4], [5]]}


@pytest.mark.parametrize(
    ("following", "choice"),
    [
        ([later(THREE)], 1),
        ([later(message("assistant", "other")), later(TWO)], 0),
        ([], None),
        ([later(message("assistant", "both wrong"))], None),
        ([later(TWO), later(THREE)], None),  # a search: both are on a trajectory
        ([later(THREE, execution_id="e2")], None),
        ([later(THREE, kind="tool")], None),
    ],
)
def test_the_choice_in_a_later_prompt_is_the_one_of_the_call(
    following: list[dict[str, Any]], choice: int | None
) -> None:
    found = continued_choices(frame(ANSWER, *following))
    assert found.to_list() == [choice, *[None] * len(following)]


def test_choices_with_one_text_are_one_only_with_the_same_tokens() -> None:
    thinking = message("assistant", "2", THOUGHT)
    equal = {"input": [QUESTION], "output": [TWO, TWO], "ids": [[4], [4]]}
    other = {"input": [QUESTION], "output": [TWO, thinking], "ids": [[4], [8, 4]]}
    assert continued_choices(frame(equal, later(TWO)))[0] == 0
    assert continued_choices(frame(other, later(TWO)))[0] is None


@pytest.mark.parametrize(
    "cells",
    [{"output": None}, {"input": None}, {"output": "[5]"}, {"output": json.dumps([TWO])}],
)
def test_messages_that_are_missing_or_damaged_tell_no_choice(cells: dict[str, Any]) -> None:
    assert continued_choices(frame({**ANSWER, "cells": cells}, later(THREE)))[0] is None
