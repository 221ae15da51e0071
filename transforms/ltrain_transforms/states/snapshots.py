"""States as frames: the snapshot at a step, the digest of chosen variables at each call."""

from collections.abc import Collection, Sequence

import polars as pl

from ltrain_transforms.states.values import part, together


def snapshot(states: pl.DataFrame, t: int) -> pl.DataFrame:
    """Give the rows of `states` that hold at step `t`: the last write of each variable.

    Step t is what call t found (Agent Lightning, equation 1); the step behind the last call is the
    final state.
    """
    held = states.filter(pl.col("t") <= t).sort("execution_id", "t", maintain_order=True)
    key = ["execution_id", "variable"]
    return held.unique(key, keep="last", maintain_order=True).sort(key)


def digest(
    states: pl.DataFrame, calls: pl.DataFrame, variables: Collection[str] | None = None
) -> pl.DataFrame:
    """Give `call_id` and `state_digest`: a hash of the chosen variables as each call found them.

    It depends on the variables and their values alone, so calls of other executions in the same
    state have the same. It is null where none of them has a value yet.

    Args:
        calls: `execution_id`, `call_id` and `seq`; others are not looked at.
        variables: their names; None is all there are.
    """
    chosen = sorted(set(states["variable"] if variables is None else variables))
    found = calls.select("execution_id", "call_id", "seq").sort("seq")
    columns = [f"digest {number}" for number in range(len(chosen))]
    for variable, column in zip(chosen, columns, strict=True):
        written = states.filter(pl.col("variable") == variable).sort("t", maintain_order=True)
        last = written.unique(["execution_id", "t"], keep="last", maintain_order=True)
        found = found.join_asof(
            last.select("execution_id", pl.col("t").alias("seq"), pl.col("digest").alias(column)),
            on="seq",
            by="execution_id",
            check_sortedness=False,
        )
    alike = found.select(columns).unique()
    hashes = [_hashed(chosen, row) for row in alike.iter_rows()]
    hashed = alike.with_columns(state_digest=pl.Series(hashes, dtype=pl.String))
    if not columns:
        return found.select("call_id", state_digest=pl.lit(None, pl.String))
    same = found.join(hashed, columns, "left", nulls_equal=True, maintain_order="left")
    return same.select("call_id", "state_digest")


def _hashed(variables: Sequence[str], digests: Sequence[str | None]) -> str | None:
    pairs = zip(variables, digests, strict=True)
    there = [part(variable, each) for variable, each in pairs if each is not None]
    return together(there) if there else None
