"""What merging saved: the prompt tokens that a trainer would compute without it and with it."""

import polars as pl


def savings(samples: pl.DataFrame) -> dict[str, int]:
    """Count over `SAMPLES`; counts of several parts add up to those of the whole.

    `calls` and `rows`; `prompt_tokens_unmerged`, each call's whole prompt, and
    `prompt_tokens_merged`, every token of the rows that was not sampled; and how many rows begin
    for each reason, `begins_…`.
    """
    prompt, response, calls = (
        pl.col(name).list.len().cast(pl.Int64)  # their own 32 bits would overflow
        for name in ("prompt_ids", "response_ids", "transition_ids")
    )
    spoken = pl.col("response_mask").list.sum().cast(pl.Int64)
    unmerged = prompt * calls + pl.col("call_offsets").list.sum().cast(pl.Int64)
    counts = samples.select(
        calls=calls.sum(),
        rows=pl.len(),
        prompt_tokens_unmerged=unmerged.sum(),
        prompt_tokens_merged=(prompt + response - spoken).sum(),
    )
    reasons = samples.group_by("begins").len().sort("begins").iter_rows()
    named = {f"begins_{reason}": count for reason, count in reasons}
    return {name: int(count) for name, count in counts.row(0, named=True).items()} | named
