"""Names -> numbers, because a million numbers are compared in a tenth of the time."""

import polars as pl


def code(name: str) -> pl.Expr:
    """Number the values of a text column; null is as the empty text. Which number says nothing."""
    return pl.col(name).fill_null("").cast(pl.Categorical).to_physical().cast(pl.UInt64)
