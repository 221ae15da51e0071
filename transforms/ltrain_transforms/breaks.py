"""Why a row begins where it does: what kept its first call from joining an earlier row.

The call is compared with the row that its tokens agree with longest. Ids cannot be decoded here,
so the messages decide: first whether the history goes on from that row's last call, or from an
earlier one, or was changed; then, where it goes on and only the ids differ, where the first
differing token lies.
"""

from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl

from ltrain_transforms.history import (
    Message,
    common_prefix,
    has_thinking,
    is_assistant,
    parse_messages,
    share_message,
)
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
        self.asked = lru_cache(maxsize=64)(self._asked)
        self.heard = lru_cache(maxsize=64)(self._heard)

    def reason(self, call: int, against: int) -> Begins:
        """Say why `call` did not join the row that ended with `against`."""
        agreed = int(self.found.agreed[call])
        if agreed == self.ends[against]:
            return Begins.TEMPERATURE
        opener = int(self.found.opener[against])
        mine, last = self.asked(call), self.heard(against)
        if not mine or not last:
            return self._by_tokens(call, against, agreed)
        shared = common_prefix(mine, last)
        if shared == len(last) < len(mine):
            return self._rendered(call, against, agreed)
        # what stands before is a prompt that other conversations may have too: examples, say
        asked = len(self.asked(opener))
        sampled = range(asked, len(last))
        again = shared == len(mine) and shared in sampled and is_assistant(last[shared])
        if again or (shared - 1 in sampled and is_assistant(last[shared - 1])):
            return Begins.BRANCH
        own = last[asked - 1 :]
        return Begins.REWRITTEN if share_message(mine, own) else Begins.CONVERSATION

    def _asked(self, call: int) -> list[Message]:
        return parse_messages(self.inputs[call])

    def _heard(self, call: int) -> list[Message]:
        """Give the history that `call` left behind, what it was asked and its answer, or none."""
        asked, answer = self.asked(call), parse_messages(self.outputs[call])[:1]
        return asked + answer if asked and answer else []

    def _rendered(self, call: int, against: int, agreed: int) -> Begins:
        """Tell a template from a tokeniser: the history is the same, the ids are not."""
        prompt, response = self.turns.prompts[against], self.turns.responses[against]
        if agreed < len(prompt):  # rendered by the template both times
            return Begins.TEMPLATE
        if any(map(has_thinking, parse_messages(self.outputs[against])[:1])):
            return Begins.TEMPLATE
        before, now = response[agreed - len(prompt) :], self.turns.prompts[call][agreed:]
        left_out, put_in = _found_in(now[:RESUMES], before), _found_in(before[:RESUMES], now)
        return Begins.TEMPLATE if left_out or put_in else Begins.RETOKENISED

    def _by_tokens(self, call: int, against: int, agreed: int) -> Begins:
        """Judge without messages: it ends inside the row, or leaves it between two calls."""
        lengths, opener = self.turns.prompts.lengths, int(self.found.opener[against])
        of_row = opener + np.flatnonzero(self.found.opener[opener : against + 1] == opener)
        between = (self.ends[of_row[:-1]] <= agreed) & (agreed < lengths[of_row[1:]])
        inside = agreed == lengths[call]
        return Begins.BRANCH if inside or between.any() else Begins.UNKNOWN


def _found_in(few: Any, many: Any) -> bool:
    """Say whether `few` tokens occur in `many`, one after the other, not at its very beginning."""
    if len(few) < RESUMES or len(many) <= RESUMES:
        return False
    windows = np.lib.stride_tricks.sliding_window_view(many[1:], RESUMES)
    return bool((windows == few).all(axis=1).any())
