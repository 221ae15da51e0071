"""Transitions -> samples: what the trainer reads, token by token.

A transition without usable tokens, or in a row that is too long, is a drop; none of these filters
changes an advantage. Tokens stay in Arrow's buffers throughout: a call costs a few microseconds.
"""

from hashlib import sha256
from itertools import pairwise

import numpy as np
import polars as pl

from ltrain_transforms import responses
from ltrain_transforms.breaks import begins
from ltrain_transforms.ragged import Ragged
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.responses import Layout
from ltrain_transforms.rows import Merged, Turns, merged
from ltrain_transforms.selection import concat_table, to_drops
from ltrain_transforms.tables import DROPS, SAMPLES
from ltrain_transforms.unusable import REASONS, measured, reason

COLUMNS = (
    *("execution_id", "call_id", "input", "output", "temperature"),
    *("constrained", "delivered", "redacted", "truncated", "token_source"),
    *("prompt_token_ids", "response_token_ids", "response_logprobs"),
)
"""What is read of `calls`."""

LANE = ("execution_id", "policy")
"""A row is of one of each."""


def samples(
    recipe: Recipe, transitions: pl.DataFrame, calls: pl.DataFrame, executions: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `samples` of the transitions of `executions`, and as `DROPS` what is left out."""
    marked = (
        transitions.join(executions.select("execution_id", "rollout_id", "mode"), "execution_id")
        .join(measured(calls), ["execution_id", "call_id"])
        .sort(*LANE, "t")
        .with_columns(reason=reason(recipe))
        .drop("input", "mode")
    )
    left_out, usable = _split(marked)
    turns = _turns(usable, calls)
    found = merged(turns)
    if recipe.filter.too_long == "row":
        most = recipe.filter.max_tokens
        long = pl.Series(np.isin(found.opener, found.opener[turns.ends > most]))
        more, usable = _split(usable.with_columns(reason=pl.when(long).then(pl.lit("too_long"))))
        left_out = pl.concat([left_out, more])
        turns = _turns(usable, calls)
        found = merged(turns)
    rows = _rows(recipe, usable, calls, turns, found)
    return rows, concat_table(DROPS, to_drops("rows", left_out, "call_id", REASONS))


def _split(marked: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Part what has a reason to be left out from what has none."""
    out = pl.col("reason").is_not_null()
    return marked.filter(out), marked.filter(~out)


def _turns(usable: pl.DataFrame, calls: pl.DataFrame) -> Turns:
    places = usable["place"]
    new = usable.select(pl.any_horizontal(pl.col(c).ne_missing(pl.col(c).shift()) for c in LANE))
    lanes = np.flatnonzero(new.to_series().to_numpy())
    return Turns.of(
        Ragged.of(calls["prompt_token_ids"].gather(places)),
        Ragged.of(_first_choice(calls["response_token_ids"], places)),
        usable["temperature"].fill_null(1.0).to_numpy(),  # the API's default
        np.append(lanes, usable.height),
    )


def _first_choice(choices: pl.Series, places: pl.Series) -> pl.Series:
    return choices.gather(places).list.first()


def _rows(
    recipe: Recipe, usable: pl.DataFrame, calls: pl.DataFrame, turns: Turns, found: Merged
) -> pl.DataFrame:
    if usable.is_empty():
        return SAMPLES.empty()
    plan = Layout.of(turns, found)
    weight = responses.weights(recipe.train.loss_weighting, turns.responses.lengths, turns.lanes)
    credit = usable.select("advantage", "reward", weight=pl.Series(weight))
    logprobs = Ragged.of(_first_choice(calls["response_logprobs"], usable["place"]))
    of_calls = usable[plan.calls]
    firsts = of_calls[plan.firsts[:-1]]
    names = _sample_ids(of_calls, plan)
    asked = calls.select("call_id", "input", "output")[usable["place"]]
    columns = {
        **{name: firsts[name] for name in (*LANE, "rollout_id", "group_id")},
        "sample_id": names,
        "tokens": pl.repeat("sampled", len(firsts), dtype=pl.String, eager=True),
        "prompt_ids": calls["prompt_token_ids"].gather(firsts["place"]),
        **responses.columns(turns, found, plan, logprobs, credit),
        "temperature": firsts["temperature"].fill_null(1.0),
        "call_offsets": plan.by_row(plan.offsets).series(SAMPLES.schema["call_offsets"]),
        "call_versions": _lists(of_calls["policy_version"], plan),
        "next_sample_id": _following(of_calls, turns, plan, names),
        "transition_ids": _lists(of_calls["call_id"], plan),
        **begins(turns, found, asked),
    }
    return SAMPLES.select(pl.LazyFrame(columns)).collect()


def _lists(of_calls: pl.Series, plan: Layout) -> pl.Series:
    """Put a value of each call into lists, one a row."""
    row = np.repeat(np.arange(len(plan.firsts) - 1), np.diff(plan.firsts))
    frame = pl.DataFrame({"row": row, "value": of_calls})
    return frame.group_by("row", maintain_order=True).agg("value")["value"]


def _sample_ids(of_calls: pl.DataFrame, plan: Layout) -> pl.Series:
    """Name rows by their execution and their calls: 32 hexadecimal digits."""
    executions, ids = of_calls["execution_id"].to_list(), of_calls["call_id"].to_list()
    ends = plan.firsts.tolist()
    parts = ("\x1f".join((executions[first], *ids[first:end])) for first, end in pairwise(ends))
    return pl.Series([sha256(part.encode()).hexdigest()[:32] for part in parts], dtype=pl.String)


def _following(of_calls: pl.DataFrame, turns: Turns, plan: Layout, names: pl.Series) -> pl.Series:
    """Give for each row the one that goes on where it stops: the next to begin after its end."""
    lane = np.repeat(np.arange(len(turns.lanes) - 1), np.diff(turns.lanes))[plan.calls]
    when = (lane << 32) + of_calls["t"].to_numpy()
    first, last = plan.firsts[:-1], plan.firsts[1:] - 1
    after = np.searchsorted(when[first], when[last], side="right")
    there = np.append(lane[first], -1)[after] == lane[last]
    return names.gather(pl.select(pl.when(pl.Series(there)).then(pl.Series(after))).to_series())
