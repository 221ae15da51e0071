"""Text of traces on a terminal: shown, never obeyed.

A stored prompt may hold escape sequences that move the cursor, rewrite lines above, or fill the
clipboard, and marks that reverse the order of reading. A terminal gets their numbers instead.
"""

import re

STEERING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Controls but tab and line feed; bidirectional marks; halves of surrogate pairs."""


def visible(text: str) -> str:
    """Return `text` with the characters that steer a terminal or its reader as their numbers."""
    return STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
