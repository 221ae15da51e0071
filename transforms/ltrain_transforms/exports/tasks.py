"""Tasks: what the rollouts were asked, to be asked again under the current policy.

A line is `{"id": ..., "input": ..., "domain": ...}`, what `ltrain rollout` reads. The input is that
of the outermost agent or graph, where it was recorded; else what the user said in the first call.
"""

from typing import Any

import polars as pl

from ltrain_transforms.dataset import Batch
from ltrain_transforms.exports.chat import NotText, chat
from ltrain_transforms.exports.converted import Converted, Lines, line
from ltrain_transforms.exports.firsts import Firsts
from ltrain_transforms.exports.rollouts import STAGE
from ltrain_transforms.exports.work import Work, lineage
from ltrain_transforms.history import parse_messages
from ltrain_transforms.selection import to_drops
from ltrain_transforms.untrusted import parse_json

REASONS = {"no_input": "neither an agent's input nor the messages of a call were recorded"}


def tasks(work: Work) -> Converted:
    """Give every task once, failed rollouts' too; of traffic without tasks, each execution."""
    firsts = Firsts(work)
    for batch in work.batches():
        for row in _asked(batch).iter_rows(named=True):
            execution = row["execution_id"]
            name = row["task_id"] or execution
            firsts.ask(name, execution)
            asked = _input(row["outer"], row["first"])
            if asked is not None:
                domain = {"domain": row["domain"]} if row["domain"] else {}
                firsts.keep(name, execution, line({"id": name, "input": asked, **domain}))
    pieces = firsts.pieces()
    silent = pl.DataFrame({"id": sorted(firsts.silent)}, {"id": pl.String})
    drops = to_drops(STAGE, silent.with_columns(reason=pl.lit("no_input")), "id", REASONS)
    return Converted(Lines(work.each(pieces)), lineage(pieces), drops)


def _asked(batch: Batch) -> pl.DataFrame:
    """Give each execution with the input of its outermost structure, and of its first LLM call."""
    columns = ("execution_id", "seq", "kind", "parent_id", "input")
    told = batch.table("calls", columns).filter(pl.col("input").is_not_null()).sort("seq")
    outside = pl.col("kind").is_in(["agent", "node"]) & pl.col("parent_id").is_null()
    inputs = told.group_by("execution_id").agg(
        outer=pl.col("input").filter(outside).first(),
        first=pl.col("input").filter(pl.col("kind") == "llm").first(),
    )
    executions = batch.table("executions", ("execution_id", "task_id", "domain"))
    return executions.sort("execution_id").join(
        inputs, "execution_id", "left", maintain_order="left"
    )


def _input(outer: str | None, first: str | None) -> Any:
    """Return the value of JSON, and other text as it is; of messages the user's."""
    if outer is not None:
        return parse_json(outer)
    try:
        said = [
            one for one in chat(parse_messages(first)) if one["role"] not in ("system", "developer")
        ]
    except NotText:
        return None
    if len(said) == 1 and said[0]["role"] == "user":
        return said[0]["content"]
    return said or None
