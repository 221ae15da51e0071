"""Tasks: what the rollouts were asked, to be asked again under the current policy.

A line is `{"id": ..., "input": ..., "domain": ...}`, what `ltrain rollout` reads. The input is that
of the outermost agent or graph, where it was recorded; else what the user said in the first call.
"""

import json
from typing import Any

import polars as pl

from ltrain_transforms.dataset import Dataset
from ltrain_transforms.exports.chat import NotText, chat
from ltrain_transforms.exports.converted import Converted, Line, Options
from ltrain_transforms.exports.rollouts import STAGE
from ltrain_transforms.history import listed
from ltrain_transforms.selection import dropped

REASONS = {"no_input": "neither an agent's input nor the messages of a call were recorded"}


def tasks(dataset: Dataset, _: Options) -> Converted:
    """Give every task once, failed rollouts' too; of traffic without tasks, each execution."""
    lines: dict[str, Line] = {}
    lineage: dict[str, list[str]] = {}
    for row in _asked(dataset).iter_rows(named=True):
        name = row["task_id"] or row["execution_id"]
        lineage.setdefault(name, []).append(row["execution_id"])
        asked = _input(row["outer"], row["first"])
        if asked is not None and name not in lines:
            domain = {"domain": row["domain"]} if row["domain"] else {}
            lines[name] = {"id": name, "input": asked, **domain}
    silent = [(one, "no_input") for name in lineage.keys() - lines.keys() for one in lineage[name]]
    left_out = pl.DataFrame(sorted(silent), {"id": pl.String, "reason": pl.String}, orient="row")
    drops = dropped(STAGE, left_out, "id", REASONS)
    return Converted(list(lines.values()), [lineage[name] for name in lines], drops)


def _asked(dataset: Dataset) -> pl.DataFrame:
    """Give each execution with the input of its outermost structure, and of its first LLM call."""
    told = dataset.table("calls").filter(pl.col("input").is_not_null()).sort("seq")
    outside = pl.col("kind").is_in(["agent", "node"]) & pl.col("parent_id").is_null()
    inputs = told.group_by("execution_id").agg(
        outer=pl.col("input").filter(outside).first(),
        first=pl.col("input").filter(pl.col("kind") == "llm").first(),
    )
    executions = dataset.table("executions").select("execution_id", "task_id", "domain")
    return executions.sort("execution_id").join(
        inputs, "execution_id", "left", maintain_order="left"
    )


def _input(outer: str | None, first: str | None) -> Any:
    """Give JSON as what it says and other text as it is; of messages the user's."""
    if outer is not None:
        try:
            return json.loads(outer, parse_constant=str)  # NaN is no JSON
        except ValueError:
            return outer
    try:
        said = [one for one in chat(listed(first)) if one["role"] not in ("system", "developer")]
    except NotText:
        return None
    if len(said) == 1 and said[0]["role"] == "user":
        return said[0]["content"]
    return said or None
