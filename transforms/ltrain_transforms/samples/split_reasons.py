"""Split reasons: why the first call of a row did not join an earlier row.

The call is compared with the row that has the longest common token prefix with its prompt. Token
ids cannot be decoded here, so the messages decide. They tell whether the history continues from the
last call of that row, continues from an earlier one, or was changed. Where it continues and only
the ids differ, the position of the first different token decides.
"""

from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl

from ltrain_transforms.samples.rows import Merges, Turns
from ltrain_transforms.traces import (
    Message,
    common_prefix,
    has_thinking,
    read_messages,
    share_message,
)

MATCH_LENGTH = 4
"""Number of equal tokens after which two renderings count as equal again."""


class SplitReason(StrEnum):
    FIRST = "first"
    """The first call of its execution and policy."""
    CONVERSATION = "conversation"
    """Another conversation, as in a sub-agent: it shares at most the system message."""
    BRANCH = "branch"
    """It continues an earlier point of a row that went on since, or samples that point again."""
    TEMPLATE = "template"
    """The history continues, and the chat template rendered a part of it differently, as when it
    removes the thinking of earlier turns."""
    RETOKENISED = "retokenised"
    """The history continues, and an answer came back in other ids than were sampled."""
    REWRITTEN = "rewritten"
    """The history was changed: compacted, summarised, shortened or edited."""
    TEMPERATURE = "temperature"
    """The tokens continue the row, and the temperature differs."""
    UNKNOWN = "unknown"
    """The tokens differ, and the messages were not recorded."""


def split_reasons(turns: Turns, merges: Merges, messages: pl.DataFrame) -> dict[str, pl.Series]:
    """Return the columns of `SAMPLES` `begins`, `differs_from` and `differs_at`.

    Args:
        messages: `call_id` of each call, its messages `input` and `output`, JSON or null, and the
            `choice` that the agent used.
    """
    openers = np.flatnonzero(merges.is_opener)
    nearest = merges.nearest[openers]
    classifier = _Classifier(turns, merges, messages)
    reasons = [
        SplitReason.FIRST.value if other < 0 else classifier.reason(call, other).value
        for call, other in zip(openers.tolist(), nearest.tolist(), strict=True)
    ]
    has_nearest = pl.Series(nearest >= 0)
    index = pl.select(pl.when(has_nearest).then(pl.Series(nearest))).to_series()
    common = pl.select(pl.when(has_nearest).then(pl.Series(merges.common[openers]))).to_series()
    return {
        "begins": pl.Series(reasons, dtype=pl.String),
        "differs_from": messages["call_id"].gather(index),
        "differs_at": common,
    }


class _Classifier:
    def __init__(self, turns: Turns, merges: Merges, messages: pl.DataFrame) -> None:
        self.turns, self.merges = turns, merges
        self.inputs, self.outputs = messages["input"], messages["output"]
        self.choices = messages["choice"].fill_null(0)
        self.input_messages = lru_cache(maxsize=64)(self._input_messages)
        self.history_after = lru_cache(maxsize=64)(self._history_after)

    def reason(self, call: int, nearest: int) -> SplitReason:
        """Return why `call` did not join the row whose last call is `nearest`."""
        common = int(self.merges.common[call])
        if common == self.turns.lengths[nearest]:
            return SplitReason.TEMPERATURE
        opener = int(self.merges.openers[nearest])
        prompt, history = self.input_messages(call), self.history_after(nearest)
        if not prompt or not history:
            return self._reason_from_tokens(call, nearest, common)
        shared = common_prefix(prompt, history)
        if shared == len(history) < len(prompt):
            return self._rendering_reason(call, nearest, common)
        # the opener's messages are a prompt that other conversations may share, such as examples
        opening = len(self.input_messages(opener))
        sampled = range(opening, len(history))
        resampled = shared == len(prompt) and shared in sampled and history[shared].is_assistant
        if resampled or (shared - 1 in sampled and history[shared - 1].is_assistant):
            return SplitReason.BRANCH
        conversation = history[opening - 1 :]
        if share_message(prompt, conversation):
            return SplitReason.REWRITTEN
        return SplitReason.CONVERSATION

    def _input_messages(self, call: int) -> list[Message]:
        return read_messages(self.inputs[call])

    def _history_after(self, call: int) -> list[Message]:
        """Return the input messages of `call` and its answer; empty if either is missing."""
        messages, answer = self.input_messages(call), self._answer(call)
        return messages + answer if messages and answer else []

    def _answer(self, call: int) -> list[Message]:
        """Return the answer that the agent used; empty if it is missing."""
        choice = self.choices[call]
        return read_messages(self.outputs[call])[choice : choice + 1]

    def _rendering_reason(self, call: int, nearest: int, common: int) -> SplitReason:
        """Distinguish template from tokeniser changes: the history is equal, the ids differ."""
        prompt, response = self.turns.prompts[nearest], self.turns.responses[nearest]
        if common < len(prompt):  # the template rendered this part both times
            return SplitReason.TEMPLATE
        if any(map(has_thinking, self._answer(nearest))):
            return SplitReason.TEMPLATE
        before, after = response[common - len(prompt) :], self.turns.prompts[call][common:]
        removed = _occurs(after[:MATCH_LENGTH], before)
        inserted = _occurs(before[:MATCH_LENGTH], after)
        return SplitReason.TEMPLATE if removed or inserted else SplitReason.RETOKENISED

    def _reason_from_tokens(self, call: int, nearest: int, common: int) -> SplitReason:
        """Decide without messages: a branch ends inside the row, or leaves it between two calls."""
        prompt_lengths, opener = self.turns.prompts.lengths, int(self.merges.openers[nearest])
        of_row = opener + np.flatnonzero(self.merges.openers[opener : nearest + 1] == opener)
        ends = self.turns.lengths[of_row[:-1]]
        leaves_between = (ends <= common) & (common < prompt_lengths[of_row[1:]])
        ends_inside = common == prompt_lengths[call]
        is_branch = ends_inside or leaves_between.any()
        return SplitReason.BRANCH if is_branch else SplitReason.UNKNOWN


def _occurs(needle: Any, tokens: Any) -> bool:
    """Return whether `needle` occurs in `tokens` as a whole, but not at their very beginning."""
    if len(needle) < MATCH_LENGTH or len(tokens) <= MATCH_LENGTH:
        return False
    windows = np.lib.stride_tricks.sliding_window_view(tokens[1:], MATCH_LENGTH)
    return bool((windows == needle).all(axis=1).any())
