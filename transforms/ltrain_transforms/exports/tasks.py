"""Tasks: the inputs of the rollouts, to run them again with the current policy.

A line is `{"id": ..., "input": ..., "domain": ...}`, which `ltrain rollout` reads. A runner records
the task with its further fields, such as the expected answer. Without a runner, the input is that
of the outermost agent or graph if it was recorded, else the user messages of the first call.
"""

from typing import Any

import polars as pl

from ltrain_transforms.datasets import DatasetBatch
from ltrain_transforms.exports.conversion import ExportResult, JsonLines, encode_line
from ltrain_transforms.exports.conversion_files import ExportJob, TaskRows, lineage
from ltrain_transforms.exports.rollouts import STAGE, TASK_COLUMNS, read_task
from ltrain_transforms.rendering import NotText, to_chat
from ltrain_transforms.source import to_drops
from ltrain_transforms.traces import parse_json, read_messages

REASONS = {"no_input": "neither an agent's input nor the messages of a call were recorded"}


def export_tasks(job: ExportJob) -> ExportResult:
    """Export every task once, also of failed rollouts, by `task_key`, else by execution."""
    tasks = TaskRows(job)
    for batch in job.batches():
        for row in _with_inputs(batch).iter_rows(named=True):
            execution = row["execution_id"]
            task = row["task_key"] or execution
            tasks.add_execution(task, execution)
            fields = read_task(row) or {"input": _input(row["outer"], row["first"])}
            if fields["input"] is not None:
                domain = {"domain": row["domain"]} if row["domain"] else {}
                line = encode_line({"id": task, "input": fields["input"], **domain, **fields})
                tasks.add_row(task, execution, line)
    pieces = tasks.pieces()
    without_row = pl.DataFrame({"id": sorted(tasks.without_row)}, {"id": pl.String})
    drops = to_drops(STAGE, without_row.with_columns(reason=pl.lit("no_input")), "id", REASONS)
    return ExportResult(JsonLines(job.load_pieces(pieces)), lineage(pieces), drops)


def _with_inputs(batch: DatasetBatch) -> pl.DataFrame:
    """Return each execution with the inputs of its outermost agent or node and first LLM call."""
    columns = ("execution_id", "seq", "kind", "parent_id", "input")
    calls = batch.table("calls", columns).filter(pl.col("input").is_not_null()).sort("seq")
    outermost = pl.col("kind").is_in(["agent", "node"]) & pl.col("parent_id").is_null()
    inputs = calls.group_by("execution_id").agg(
        outer=pl.col("input").filter(outermost).first(),
        first=pl.col("input").filter(pl.col("kind") == "llm").first(),
    )
    executions = batch.table("executions", ("execution_id", "task_key", "domain", *TASK_COLUMNS))
    return executions.sort("execution_id").join(
        inputs, "execution_id", "left", maintain_order="left"
    )


def _input(outer: str | None, first: str | None) -> Any:
    """Return the decoded outer input, else the messages of the first call without the system's.

    Text that is not JSON stays text. A single user message is reduced to its content.
    """
    if outer is not None:
        return parse_json(outer)
    try:
        messages = to_chat(read_messages(first))
    except NotText:
        return None
    inputs = [message for message in messages if message["role"] not in ("system", "developer")]
    if len(inputs) == 1 and inputs[0]["role"] == "user":
        return inputs[0]["content"]
    return inputs or None
