"""Texts that say that a tool failed, by the framework or the coding client that returns them."""

from functools import cache

CLIENTS = {
    "codex": r"^(Chunk ID: .*\n)?(Wall time: .*\n)?Process exited with code -?[1-9]"
    r"|^Exit code: -?[1-9]|^apply_patch verification failed",
    "gemini-cli": r"(^|\n)Exit Code: -?[1-9]\d*(\n(Signal|Background PIDs|Process Group PGID): .*)*"
    r"\s*$",
    "mini-swe-agent": r'^\s*(\{\s*"returncode": |<returncode>)-?[1-9]',
}
"""Patterns of what a coding client returns to the model of a command that failed. Qwen Code writes
the texts of Gemini CLI."""


@cache
def failed_results() -> dict[str, str]:
    """Return the patterns of the text that a framework returns to the model where a tool raised,
    and a coding client where a command failed.
    """
    from ltrain_instrument.instrumentors import (
        LIBRARIES,  # a recipe without `tool_error` needs none
    )

    return CLIENTS | {each.name: each.failed_result for each in LIBRARIES if each.failed_result}
