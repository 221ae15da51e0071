"""The choice of an answer that the agent used, where the answer has several.

The messages of the later calls of an execution decide. A choice is continued by a call whose input
begins with the input of the answer and that choice. Thinking is not compared, because clients leave
it out.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from ltrain_transforms.tables import CALLS
from ltrain_transforms.traces import (
    FAILURES,
    ComparableHistory,
    comparable_history,
    continues,
    read_messages,
)

COLUMNS = ("execution_id", "kind", "seq", "input", "output", "response_token_ids")


def continued_choices(calls: pl.DataFrame) -> pl.Series:
    """Return the column `choice` of `CALLS`: null for a call with one choice, or an unknown one."""
    rows = calls.select(COLUMNS).with_row_index().filter(pl.col("kind") == "llm")
    several = rows.filter(pl.col("response_token_ids").list.len() > 1)
    cells: list[int | None] = [None] * calls.height
    concerned = rows.join(several, "execution_id", "semi").sort("seq")
    for execution in concerned.partition_by("execution_id"):
        for index, choice in _find_each(execution.to_dicts()):
            cells[index] = choice
    return pl.Series("choice", cells, CALLS.schema["choice"])


def _find_each(calls: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int | None]]:
    """Yield the index of each call with several choices, and the choice that is continued."""
    histories = [_history(call["input"]) for call in calls]
    for place, (call, prompt) in enumerate(zip(calls, histories, strict=True)):
        if len(call["response_token_ids"] or ()) > 1:
            yield call["index"], _continued(call, prompt, histories[place + 1 :])


def _continued(
    call: dict[str, Any], prompt: ComparableHistory, later: Sequence[ComparableHistory]
) -> int | None:
    """Return the only choice that one of the later histories continues.

    None if there is none, or if several differ: agents that search continue more than one.
    """
    ids, answers = call["response_token_ids"], _history(call["output"])
    if not prompt or len(answers) != len(ids):
        return None
    continued = [
        index
        for index, answer in enumerate(answers)
        if any(continues(history, (*prompt, answer)) for history in later)
    ]
    same_tokens = all(ids[index] == ids[continued[0]] for index in continued)
    return continued[0] if continued and same_tokens else None


def _history(text: str | None) -> ComparableHistory:
    """Return the messages in a comparable form; none if they cannot be read."""
    try:
        return comparable_history(read_messages(text), thinking=False)
    except FAILURES:  # any text may be in a message
        return ()
