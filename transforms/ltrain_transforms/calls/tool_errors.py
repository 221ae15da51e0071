"""Failures that a tool returns as plain text, without an error status: patterns of `[source]`."""

from collections.abc import Sequence

import polars as pl

from ltrain_transforms.recipe import failed_results

ERROR_TYPE = "tool_error"
"""The error type of a tool that failed by its text."""


def mark_failed_tools(calls: pl.DataFrame, patterns: Sequence[str]) -> pl.DataFrame:
    """Return the calls, where a tool whose result matches one of `patterns` has failed.

    Args:
        patterns: names of `failed_results`, or regular expressions of Rust's `regex`, whose time is
            linear in the text.
    """
    if not patterns:
        return calls
    result = pl.col("result")
    matches = pl.any_horizontal(
        result.str.contains(failed_results().get(pattern, pattern)) for pattern in patterns
    )
    failed = ((pl.col("kind") == "tool") & (pl.col("status") == "ok") & matches).fill_null(False)
    return calls.with_columns(
        status=pl.when(failed).then(pl.lit("error")).otherwise("status"),
        error_type=pl.when(failed).then(pl.lit(ERROR_TYPE)).otherwise("error_type"),
    )
