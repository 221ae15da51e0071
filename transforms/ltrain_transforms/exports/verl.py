"""verl's prompt parquet: the first prompt of every task, as verl's own RLHFDataset reads it.

A row has `prompt` (messages of role and content), `data_source`, `ability`, `reward_model` with an
empty `ground_truth`, since traces hold none, and `extra_info` with the task's id for a reward
function to look it up by.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import polars as pl

from ltrain_transforms.exports.chat import Message
from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.converted import ROWS, Converted, Frames
from ltrain_transforms.exports.firsts import Firsts
from ltrain_transforms.exports.left_out import LeftOut
from ltrain_transforms.exports.rollouts import STAGE, rollouts, talks
from ltrain_transforms.exports.work import Work, lineage
from ltrain_transforms.selection import to_drops

REASONS = {"not_plain": "its first prompt holds tool calls or results, which verl's prompts do not"}

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


def verl(work: Work) -> Converted:
    """Give the first prompt of each task; of traffic without tasks, of each execution."""
    found = rollouts(work.dataset)
    firsts, left_out = Firsts(work), LeftOut(found)
    for batch in work.batches():
        spoken = talks(batch, found, work.options.policy)
        told = found.taken.filter(pl.col("execution_id").is_in(list(spoken.by_execution)))
        fancy: list[tuple[str, str]] = []
        for row in told.iter_rows(named=True):
            execution = row["execution_id"]
            prompt = _prompt(spoken.by_execution[execution][0])
            if prompt is None:
                fancy.append((execution, "not_plain"))
                continue
            name = row["task_id"] or execution
            firsts.ask(name, execution)
            firsts.keep(name, execution, json.dumps(_row(row, name, prompt)).encode())
        reasons = pl.DataFrame(fancy, {"id": pl.String, "reason": pl.String}, orient="row")
        left_out.talks(spoken)
        left_out.executions("fancy", to_drops(STAGE, reasons, "id", REASONS))
    pieces = firsts.pieces()
    return Converted(Frames(_frames(work.each(pieces))), lineage(pieces), left_out.drops())


def _row(execution: dict[str, Any], name: str, prompt: list[Message]) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "data_source": execution["run_id"] or "ltrain",
        "ability": execution["domain"] or "",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"split": execution["mode"] or "train", "task_id": name},
    }


def _frames(held: Iterator[bytes]) -> Iterator[pl.DataFrame]:
    """Give rows with their places, `ROWS` at a time."""
    numbered = enumerate(map(json.loads, held))
    while rows := list(islice(numbered, ROWS)):
        for index, row in rows:
            row["extra_info"]["index"] = index
        yield pl.DataFrame([row for _, row in rows], SCHEMA)


def _prompt(talk: Conversation) -> list[Message] | None:
    """Give what its first call was asked; None where that is more than roles and text."""
    messages = talk.before(min(talk.answers))
    plain = all(message.keys() == {"role", "content"} for message in messages)
    return messages if plain else None
