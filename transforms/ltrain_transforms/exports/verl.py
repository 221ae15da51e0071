"""verl's prompt parquet: the first prompt of every task, for verl's own RLHFDataset.

A row has `prompt` (messages of role and content), `data_source`, `ability`, `reward_model` and
`extra_info` with the task id. `ground_truth` holds the task's further fields: the value if there is
one, a JSON object if there are several. It is empty where no runner recorded the task; a reward
function can look it up by the task id.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import polars as pl

from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.conversion import ROWS, ExportResult, ParquetRows
from ltrain_transforms.exports.conversion_files import ExportJob, TaskRows, lineage
from ltrain_transforms.exports.rollouts import (
    STAGE,
    ExportDrops,
    read_conversations,
    read_rollouts,
    read_task,
)
from ltrain_transforms.rendering import ChatMessage
from ltrain_transforms.source import to_drops
from ltrain_transforms.traces import to_text

REASONS = {
    "not_plain": "its first prompt holds tool calls or results, which verl's prompts cannot hold"
}

TEXT = pl.String()
SCHEMA = pl.Schema(
    {
        "prompt": pl.List(pl.Struct({"role": TEXT, "content": TEXT})),
        "data_source": TEXT,
        "ability": TEXT,
        "reward_model": pl.Struct({"style": TEXT, "ground_truth": TEXT}),
        "extra_info": pl.Struct({"index": pl.Int64(), "split": TEXT, "task_id": TEXT}),
    }
)


def export_verl(job: ExportJob) -> ExportResult:
    """Export the first prompt of each task, or of each question without a task id."""
    rollouts = read_rollouts(job.dataset)
    tasks, drops = TaskRows(job), ExportDrops(rollouts)
    for batch in job.batches():
        conversations = read_conversations(batch, rollouts, job.options.policy)
        ids = list(conversations.by_execution)
        executions = rollouts.selected.filter(pl.col("execution_id").is_in(ids))
        not_plain: list[tuple[str, str]] = []
        for row in executions.iter_rows(named=True):
            execution = row["execution_id"]
            prompt = _prompt(conversations.by_execution[execution][0])
            if prompt is None:
                not_plain.append((execution, "not_plain"))
                continue
            task = row["task_key"] or execution
            tasks.add_execution(task, execution)
            tasks.add_row(task, execution, json.dumps(_row(row, task, prompt)).encode())
        reasons = pl.DataFrame(not_plain, {"id": pl.String, "reason": pl.String}, orient="row")
        drops.add_batch(conversations)
        drops.add_executions("not_plain", to_drops(STAGE, reasons, "id", REASONS))
    pieces = tasks.pieces()
    rows = ParquetRows(_frames(job.load_pieces(pieces)))
    return ExportResult(rows, lineage(pieces), drops.drops())


def _row(execution: dict[str, Any], task: str, prompt: list[ChatMessage]) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "data_source": execution["run_id"] or "ltrain",
        "ability": execution["domain"] or "",
        "reward_model": {"style": "rule", "ground_truth": _ground_truth(execution)},
        "extra_info": {"split": execution["mode"] or "train", "task_id": task},
    }


def _ground_truth(execution: dict[str, Any]) -> str:
    fields = read_task(execution) or {}
    further = {name: value for name, value in fields.items() if name != "input"}
    if len(further) > 1:
        return to_text(further)
    return "".join(map(to_text, further.values()))


def _frames(lines: Iterator[bytes]) -> Iterator[pl.DataFrame]:
    """Yield the decoded rows with their index, `ROWS` at a time."""
    numbered = enumerate(map(json.loads, lines))
    while rows := list(islice(numbered, ROWS)):
        for index, row in rows:
            row["extra_info"]["index"] = index
        yield pl.DataFrame([row for _, row in rows], SCHEMA)


def _prompt(conversation: Conversation) -> list[ChatMessage] | None:
    """Return the prompt of the first call; None if it holds more than roles and text."""
    messages = conversation.prompt(min(conversation.answers))
    plain = all(message.keys() == {"role", "content"} for message in messages)
    return messages if plain else None
