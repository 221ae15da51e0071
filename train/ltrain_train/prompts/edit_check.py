"""Which edited prompts become candidates; a dropped one has a reason."""

from collections.abc import Collection
from enum import StrEnum

from ltrain_instrument.prompts import Prompt

MAX_CHARACTERS = 50_000
"""A command gets its prompts in one environment variable; Linux allows 128 KiB."""
OPENING, CLOSING = "<prompt>", "</prompt>"


class Drop(StrEnum):
    """The reason why an answer of the critic is not a candidate."""

    NO_ANSWER = "no_answer"
    """The critic's answer has no text."""
    NO_PROMPT = "no_prompt"
    """The critic's answer has no prompt between `<prompt>` and `</prompt>`."""
    LOST_SLOT = "lost_slot"
    """The prompt lacks a slot of its parent."""
    NEW_SLOT = "new_slot"
    """The prompt has a slot that its parent does not have."""
    TOO_LONG = "too_long"
    """The prompt has more than 50,000 characters."""
    DUPLICATE = "duplicate"
    """The run has had the same text already."""


def extract_prompt(answer: str) -> str | None:
    """Return the text between the tags; None if there is none."""
    _, opening, rest = answer.partition(OPENING)
    text, closing, _ = rest.rpartition(CLOSING)
    return text.strip() or None if opening and closing else None


def find_drop(text: str | None, parent: Prompt, known: Collection[str]) -> Drop | None:
    """Return why a text is not a candidate; None for a candidate.

    Args:
        text: the edited prompt; None if the critic's answer has none.
        known: the texts that the run has had.
    """
    if text is None:
        return Drop.NO_PROMPT
    slots, expected = set(Prompt(text).slots), set(parent.slots)
    if expected - slots:
        return Drop.LOST_SLOT
    if slots - expected:
        return Drop.NEW_SLOT
    if len(text) > MAX_CHARACTERS:
        return Drop.TOO_LONG
    return Drop.DUPLICATE if text in known else None
