"""Tokens saved by merging calls into rows: the prompt tokens to compute without it and with it."""

import polars as pl


def count_savings(samples: pl.DataFrame) -> dict[str, int]:
    """Count over `SAMPLES`; the counts of several parts add up to those of all of them.

    `calls` and `rows`; `prompt_tokens_unmerged`, the prompts of all calls;
    `prompt_tokens_merged`, all tokens of the rows that were not sampled; and `begins_…`, the rows
    that begin for each reason.
    """
    prompt, response, calls = (
        pl.col(name).list.len().cast(pl.Int64)  # sums of 32 bits would overflow
        for name in ("prompt_ids", "response_ids", "transition_ids")
    )
    sampled = pl.col("response_mask").list.sum().cast(pl.Int64)
    unmerged = prompt * calls + pl.col("call_offsets").list.sum().cast(pl.Int64)
    counts = samples.select(
        calls=calls.sum(),
        rows=pl.len(),
        prompt_tokens_unmerged=unmerged.sum(),
        prompt_tokens_merged=(prompt + response - sampled).sum(),
    )
    reasons = samples.group_by("begins").len().sort("begins").iter_rows()
    by_reason = {f"begins_{reason}": count for reason, count in reasons}
    return {name: int(count) for name, count in counts.row(0, named=True).items()} | by_reason
