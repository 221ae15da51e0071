"""Failures that a tool returns as plain text, without an error status: patterns of `[source]`."""

from collections.abc import Sequence
from difflib import get_close_matches

import polars as pl

ERROR_TYPE = "tool_error"
"""The error type of a tool that failed by its text."""

READY = {
    "crewai": r"^\s*(Error executing tool|I encountered an error while trying to use the tool)",
    "dspy": r"^Execution error in ",
    "haystack": r"^Failed to invoke Tool ",
    "langchain": r"^Error[: ][\s\S]*(Please fix (your mistakes|the error and try again)\."
    r"|is not a valid tool, try one of \[.*\]\.)$",
    "llama-index": r"^(Encountered error|An error occurred while running the tool): ",
    "openai-agents": r"^An error occurred while (running the tool|parsing tool arguments)\.",
}
"""Patterns by framework: the texts that it returns to the model where a tool raised."""


def mark_failed_tools(calls: pl.DataFrame, patterns: Sequence[str]) -> pl.DataFrame:
    """Return the calls; tools whose result matches a pattern or one of `READY` have failed.

    Args:
        patterns: names of `READY`, or regular expressions of Rust's `regex`, whose time is
            linear in the text.
    """
    if not patterns:
        return calls
    result = pl.col("result")
    matches = pl.any_horizontal(result.str.contains(READY.get(one, one)) for one in patterns)
    failed = ((pl.col("kind") == "tool") & (pl.col("status") == "ok") & matches).fill_null(False)
    return calls.with_columns(
        status=pl.when(failed).then(pl.lit("error")).otherwise("status"),
        error_type=pl.when(failed).then(pl.lit(ERROR_TYPE)).otherwise("error_type"),
    )


def pattern_error(pattern: str) -> str | None:
    """Return why `pattern` cannot be used; None where it is valid, or a name of `READY`."""
    if pattern not in READY and (close := get_close_matches(pattern.replace("_", "-"), READY)):
        return f"did you mean '{close[0]}'?"
    try:
        if pl.Series(["", "7", "a b"]).str.contains(READY.get(pattern, pattern)).all():
            return "it matches every result"
    except pl.exceptions.ComputeError as error:
        lines = str(error).removeprefix("regex error: ").splitlines()
        reasons = (line for line in lines if line.startswith("error: "))
        return next(reasons, lines[0]).removeprefix("error: ")
    return None
