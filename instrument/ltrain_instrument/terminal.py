"""Makes text of traces safe to print on a terminal.

A stored prompt may contain escape sequences that move the cursor, rewrite earlier lines or fill the
clipboard, and marks that reverse the reading direction. They are printed as their code points.
"""

import re

CONTROL_CHARACTERS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except tab and line feed, bidirectional marks, and lone surrogates."""


def visible(text: str) -> str:
    """Return `text` with control characters of a terminal replaced by their code points."""
    return CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
