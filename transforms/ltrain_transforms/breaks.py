"""Why a row begins where it does: what kept its first call from joining an earlier row.

The call is compared with the row that its tokens agree with longest. Ids cannot be decoded here,
so the messages decide: first whether the history goes on from that row's last call, or from an
earlier one, or was changed; then, where it goes on and only the ids differ, where the first
differing token lies.
"""

import json
import re
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from ltrain_transforms.dialects.partial import parts_of
from ltrain_transforms.rows import Merged, Turns

RESUMES = 4
"""So many equal tokens say that two renderings go on alike."""


class Begins(StrEnum):
    FIRST = "first"
    """The first call of its execution and policy."""
    CONVERSATION = "conversation"
    """Another conversation: no message but the system's is in the row before, as in a sub-agent."""
    BRANCH = "branch"
    """It continues an earlier point of a row that has gone on since, or samples it again."""
    TEMPLATE = "template"
    """The history goes on, and the chat template rendered a part of it anew, as when thinking is
    stripped from earlier turns."""
    RETOKENISED = "retokenised"
    """The history goes on, and an answer came back in other ids than were sampled."""
    REWRITTEN = "rewritten"
    """The history was changed: compacted, summarised, shortened or edited."""
    TEMPERATURE = "temperature"
    """The tokens go on, and it was sampled at another temperature."""
    UNKNOWN = "unknown"
    """The tokens differ, and the messages were not recorded."""


def begins(turns: Turns, found: Merged, asked: pl.DataFrame) -> dict[str, pl.Series]:
    """Make the columns of `SAMPLES` that say why each row begins.

    Args:
        asked: of each call its `call_id`, and its messages `input` and `output`, JSON or null.
    """
    openers = np.flatnonzero(found.begins)
    against = found.against[openers]
    judge = _Judge(turns, found, asked["input"], asked["output"])
    reasons = [
        Begins.FIRST.value if other < 0 else judge.reason(call, other).value
        for call, other in zip(openers.tolist(), against.tolist(), strict=True)
    ]
    broken = pl.Series(against >= 0)
    seen = pl.select(pl.when(broken).then(pl.Series(against))).to_series()
    agreed = pl.select(pl.when(broken).then(pl.Series(found.agreed[openers]))).to_series()
    return {
        "begins": pl.Series(reasons, dtype=pl.String),
        "differs_from": asked["call_id"].gather(seen),
        "differs_at": agreed,
    }


class _Judge:
    def __init__(self, turns: Turns, found: Merged, inputs: pl.Series, outputs: pl.Series) -> None:
        self.turns, self.found = turns, found
        self.inputs, self.outputs = inputs, outputs
        self.ends = turns.ends
        self.heard = lru_cache(maxsize=256)(self._heard)

    def reason(self, call: int, against: int) -> Begins:
        """Say why `call` did not join the row that ended with `against`."""
        agreed = int(self.found.agreed[call])
        if agreed == self.ends[against]:
            return Begins.TEMPERATURE
        # the row's calls so far, the last first
        opener = int(self.found.opener[against])
        of_row = opener + np.flatnonzero(self.found.opener[opener : against + 1] == opener)
        members = of_row[::-1].tolist()
        mine = self.asked(call)
        last = self.heard(against)
        if mine is None or last is None:
            return self._by_tokens(call, agreed, members)
        if _goes_on(mine, last):
            return self._rendered(call, against, agreed)
        if any(self._continues(mine, one) for one in members):
            return Begins.BRANCH
        shared = {said for said in last if said[0] != "system"} & set(mine)
        return Begins.REWRITTEN if shared else Begins.CONVERSATION

    def asked(self, call: int) -> "Said | None":
        return said(self.inputs[call])

    def _heard(self, call: int) -> "Said | None":
        """Give the history that `call` left behind: what it was asked, and its answer."""
        asked, answered = said(self.inputs[call]), said(self.outputs[call])
        return None if asked is None or answered is None else asked + answered[:1]

    def _continues(self, mine: "Said", earlier: int) -> bool:
        left = self.heard(earlier)
        return left is not None and (_goes_on(mine, left) or mine == left[:-1])

    def _rendered(self, call: int, against: int, agreed: int) -> Begins:
        """Tell a template from a tokeniser: the history is the same, the ids are not."""
        prompt, response = (self._row(lists, against) for lists in _both(self.turns))
        if agreed < len(prompt):  # rendered by the template both times
            return Begins.TEMPLATE
        if _has_thinking(self.outputs[against]):
            return Begins.TEMPLATE
        before, now = response[agreed - len(prompt) :], self._row(self.turns.prompts, call)[agreed:]
        left_out, put_in = _found_in(now[:RESUMES], before), _found_in(before[:RESUMES], now)
        return Begins.TEMPLATE if left_out or put_in else Begins.RETOKENISED

    def _by_tokens(self, call: int, agreed: int, members: list[int]) -> Begins:
        """Judge without messages: it ends inside the row, or leaves it between two calls."""
        lengths = self.turns.prompts.lengths
        between = any(self.ends[one] <= agreed < lengths[after] for after, one in pairwise(members))
        inside = agreed == lengths[call]
        return Begins.BRANCH if inside or between else Begins.UNKNOWN

    @staticmethod
    def _row(lists: Any, call: int) -> Any:
        return lists.values[lists.offsets[call] : lists.offsets[call + 1]]


def _both(turns: Turns) -> tuple[Any, Any]:
    return turns.prompts, turns.responses


def _found_in(few: Any, many: Any) -> bool:
    """Say whether `few` tokens occur in `many`, one after the other, not at its very beginning."""
    if len(few) < RESUMES or len(many) <= RESUMES:
        return False
    windows = np.lib.stride_tricks.sliding_window_view(many[1:], RESUMES)
    return bool((windows == few).all(axis=1).any())


Said = tuple[tuple[str, str, tuple[str, ...]], ...]
"""A history: of each message the role, the text without thinking, and tool calls and results."""


def said(messages: str | None) -> Said | None:
    """Read messages in a form that compares; None where there are none to read."""
    try:
        given = json.loads(messages or "")
    except ValueError:
        return None
    listed = given if isinstance(given, list) else []
    return tuple(_message(each) for each in listed if isinstance(each, dict)) or None


def _message(message: dict[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    parts = parts_of(message)
    text = "".join(str(part.get("content") or "") for part in parts if part.get("type") == "text")
    others = tuple(_part(part) for part in parts if part.get("type") not in ("text", *THINKING))
    return str(message.get("role")), _without_thinking(text), others


THINKING = ("reasoning", "thinking")
"""Types of parts that hold thinking."""


def _part(part: dict[str, Any]) -> str:
    """Write a part so that it compares: a tool's arguments may be an object or its JSON."""
    fields = {name: part[name] for name in sorted(part) if part[name] is not None}
    if isinstance(fields.get("arguments"), str):
        try:
            fields["arguments"] = json.loads(fields["arguments"])
        except ValueError:
            fields["arguments"] = fields["arguments"].strip()
    return json.dumps(fields, sort_keys=True)


def _without_thinking(text: str) -> str:
    if "</think>" not in text:
        return text.strip()
    # the template may have opened it in the prompt, so the answer may only close it
    return re.sub(r"^.*</think>", "", text, flags=re.DOTALL).strip()


def _has_thinking(messages: str | None) -> bool:
    given = json.loads(messages or "[]")
    answer = given[:1] if isinstance(given, list) else []
    parts = [part for message in answer for part in parts_of(message)]
    return any(
        part.get("type") in THINKING or "</think>" in str(part.get("content") or "")
        for part in parts
    )


def _goes_on(mine: Said, earlier: Said) -> bool:
    return len(mine) > len(earlier) and mine[: len(earlier)] == earlier
