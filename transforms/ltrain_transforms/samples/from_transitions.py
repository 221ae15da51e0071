"""Transitions -> samples: the token rows that the trainer reads.

A transition without usable tokens, or in a row that is too long, is a drop; these filters change no
advantage. Tokens stay in Arrow buffers throughout, so that a call costs a few microseconds.
"""

from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise

import numpy as np
import polars as pl

from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rendering import RENDERED, ServedPolicy, render_calls
from ltrain_transforms.samples import responses
from ltrain_transforms.samples.ragged import Ragged
from ltrain_transforms.samples.responses import Layout
from ltrain_transforms.samples.row_filters import (
    REASONS,
    UNCHOSEN,
    drop_reason,
    filter_inputs,
)
from ltrain_transforms.samples.rows import Merges, Turns, merge_turns
from ltrain_transforms.samples.split_reasons import split_reasons
from ltrain_transforms.source import concat_table, to_drops
from ltrain_transforms.tables import DROPS, SAMPLES, taken_choice

COLUMNS = (
    *("execution_id", "call_id", "input", "output", "params", "temperature"),
    *("constrained", "constraint", "delivered", "redacted", "truncated", "token_source"),
    *("prompt_token_ids", "response_token_ids", "response_logprobs", "choice"),
)
"""The columns of `calls` that `samples` reads."""

LANE = ("execution_id", "policy")
"""A row belongs to one execution and one policy: a lane."""


def samples(
    recipe: Recipe,
    transitions: pl.DataFrame,
    calls: pl.DataFrame,
    executions: pl.DataFrame,
    served: Sequence[ServedPolicy] = (),
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the `SAMPLES` of the transitions of `executions`, and the dropped calls as `DROPS`.

    Args:
        served: the policies whose calls without token ids are rendered.
    """
    calls = render_calls(calls, transitions, served)
    marked = (
        transitions.join(executions.select("execution_id", "rollout_id", "mode"), "execution_id")
        .join(filter_inputs(calls), ["execution_id", "call_id"])
        .sort(*LANE, "t")
        .with_columns(reason=drop_reason(recipe))
        .drop("input", "mode")
    )
    left_out, usable = _split_by_reason(marked)
    turns = _turns(usable, calls)
    merges = merge_turns(turns)
    if recipe.filter.too_long == "row":
        too_long = merges.openers[turns.lengths > recipe.filter.max_tokens]
        in_long_row = pl.Series(np.isin(merges.openers, too_long))
        more, usable = _split_by_reason(
            usable.with_columns(reason=pl.when(in_long_row).then(pl.lit("too_long")))
        )
        left_out = pl.concat([left_out, more])
        turns = _turns(usable, calls)
        merges = merge_turns(turns)
    if recipe.credit.uses_critic:
        usable = _with_rewards_of_left_out(usable, left_out)
    rows = _rows(recipe, usable, calls, turns, merges)
    dropped = to_drops("rows", left_out, "call_id", REASONS)
    return rows, concat_table(DROPS, dropped, _unchosen(usable))


def _unchosen(usable: pl.DataFrame) -> pl.DataFrame:
    """Return `DROPS`: the choices of calls in rows that the agent did not use."""
    several = usable.filter(pl.col("choices") > 1)
    each = several.with_columns(other=pl.int_ranges("choices")).explode("other")
    others = each.filter(pl.col("other") != pl.col("choice")).select(
        pl.format("{}:{}", "call_id", "other").alias("call_id"), reason=pl.lit("unchosen")
    )
    return to_drops("rows", others, "call_id", UNCHOSEN)


def _split_by_reason(marked: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows that have a `reason` to be left out, and those that have none."""
    has_reason = pl.col("reason").is_not_null()
    return marked.filter(has_reason), marked.filter(~has_reason)


def _with_rewards_of_left_out(usable: pl.DataFrame, left_out: pl.DataFrame) -> pl.DataFrame:
    """Add the rewards of calls that are left out to the call before them in their lane.

    To a critic they are environment, like the calls of tools. Those before the lane's first row
    belong to no step.
    """
    columns = (*LANE, "t", "reward")
    used = usable.select(*columns, used=pl.lit(True))
    each = pl.concat([used, left_out.select(*columns, used=pl.lit(False))]).sort(*LANE, "t")
    steps = each.with_columns(step=pl.col("used").cum_sum().over(LANE))
    total = steps.with_columns(pl.col("reward").sum().over(*LANE, "step")).filter("used")["reward"]
    return usable.with_columns(total)


def _turns(usable: pl.DataFrame, calls: pl.DataFrame) -> Turns:
    index = usable["index"]
    changes = pl.any_horizontal(pl.col(c).ne_missing(pl.col(c).shift()) for c in LANE)
    lanes = np.flatnonzero(usable.select(changes).to_series().to_numpy())
    return Turns.from_tokens(
        Ragged.from_series(calls["prompt_token_ids"].gather(index)),
        Ragged.from_series(_taken_choice(calls, "response_token_ids", index)),
        usable["temperature"].fill_null(1.0).to_numpy(),  # the API's default
        np.append(lanes, usable.height),
    )


def _taken_choice(calls: pl.DataFrame, column: str, index: pl.Series) -> pl.Series:
    return calls.select(column, "choice")[index].select(taken_choice(column)).to_series()


def _rows(
    recipe: Recipe, usable: pl.DataFrame, calls: pl.DataFrame, turns: Turns, merges: Merges
) -> pl.DataFrame:
    if usable.is_empty():
        return SAMPLES.empty()
    layout = Layout.from_merges(turns, merges)
    weighting = recipe.train.loss_weighting
    weight = responses.loss_weights(weighting, turns.responses.lengths, turns.lanes)
    credit = usable.select("advantage", "reward", weight=pl.Series(weight))
    logprobs = Ragged.from_series(_taken_choice(calls, "response_logprobs", usable["index"]))
    ordered = usable[layout.calls]
    openers = ordered[layout.row_offsets[:-1]]
    sample_ids = _sample_ids(ordered, layout)
    messages = calls.select("call_id", "input", "output", "choice")[usable["index"]]
    columns = {
        **{name: openers[name] for name in (*LANE, "rollout_id", "group_id")},
        "sample_id": sample_ids,
        "tokens": _token_sources(calls["token_source"].gather(ordered["index"]), layout),
        "prompt_ids": calls["prompt_token_ids"].gather(openers["index"]),
        **responses.token_columns(turns, merges, layout, logprobs, credit),
        "temperature": openers["temperature"].fill_null(1.0),
        "call_offsets": layout.by_row(layout.call_offsets).to_series(
            SAMPLES.schema["call_offsets"]
        ),
        "call_constraints": _to_lists(calls["constraint"].gather(ordered["index"]), layout),
        "call_versions": _to_lists(ordered["policy_version"], layout),
        "call_positions": _to_lists(ordered["t"], layout),
        "next_sample_id": _next_sample_ids(ordered, turns, layout, sample_ids),
        "transition_ids": _to_lists(ordered["call_id"], layout),
        **split_reasons(turns, merges, messages),
    }
    return SAMPLES.select(pl.LazyFrame(columns)).collect()


def _token_sources(of_calls: pl.Series, layout: Layout) -> pl.Series:
    """Return for each row `rendered` if one of its calls is, else `sampled`."""
    rendered = _to_lists(of_calls.eq_missing(RENDERED), layout)
    return pl.select(
        pl.when(rendered.list.any()).then(pl.lit(RENDERED)).otherwise(pl.lit("sampled"))
    ).to_series()


def _to_lists(values: pl.Series, layout: Layout) -> pl.Series:
    """Return a value of each call as lists, one a row."""
    offsets = layout.row_offsets
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    frame = pl.DataFrame({"row": row, "value": values})
    return frame.group_by("row", maintain_order=True).agg("value")["value"]


def _sample_ids(ordered: pl.DataFrame, layout: Layout) -> pl.Series:
    """Return the id of each row: 32 hexadecimal digits, a hash of its execution and its calls."""
    executions, ids = ordered["execution_id"].to_list(), ordered["call_id"].to_list()
    keys = (
        "\x1f".join((executions[begin], *ids[begin:end]))
        for begin, end in pairwise(layout.row_offsets.tolist())
    )
    return pl.Series([sha256(key.encode()).hexdigest()[:32] for key in keys], dtype=pl.String)


def _next_sample_ids(
    ordered: pl.DataFrame, turns: Turns, layout: Layout, sample_ids: pl.Series
) -> pl.Series:
    """Return for each row the id of the next row of its lane that begins after it ends, or null."""
    lane = np.repeat(np.arange(len(turns.lanes) - 1), np.diff(turns.lanes))[layout.calls]
    time = (lane << 32) + ordered["t"].to_numpy()
    first, last = layout.row_offsets[:-1], layout.row_offsets[1:] - 1
    index = np.searchsorted(time[first], time[last], side="right")
    in_lane = np.append(lane[first], -1)[index] == lane[last]
    following = pl.when(pl.Series(in_lane)).then(pl.Series(index))
    return sample_ids.gather(pl.select(following).to_series())


def count_savings(samples: pl.DataFrame) -> dict[str, int]:
    """Count the tokens saved by merging calls into rows; counts of several parts add up.

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
