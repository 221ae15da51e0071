"""A folder for the Hugging Face Hub: `data/train.parquet` and the card `README.md`.

A row is a conversation: `messages`, `tools` as JSON text, the reward of its rollout and its origin.
The card has the licence, the options, the recipe of the rewards, and what was left out and why.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ltrain_instrument.quantity import quantity
from ltrain_transforms.datasets import count_reasons
from ltrain_transforms.exports.conversation_rows import Facts, Rows, export_conversations
from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.conversion import ExportResult, ParquetRows
from ltrain_transforms.exports.conversion_files import ExportJob
from ltrain_transforms.exports.sft import chat_line

CARD = "README.md"
TAG = "ltrain"
"""The tag in the card by which `ltrain push` knows such a folder."""

SECTIONS = ("source", "policy", "reward", "credit", "filter")
"""The parts of a recipe that the card has; others name programs, files and servers."""

LICENSE = "unknown"

_TEXT = pl.String()
_FUNCTION = pl.Struct({"name": _TEXT, "arguments": _TEXT})
_MESSAGE = pl.Struct(
    {
        "role": _TEXT,
        "content": _TEXT,
        "reasoning_content": _TEXT,
        "tool_calls": pl.List(pl.Struct({"id": _TEXT, "type": _TEXT, "function": _FUNCTION})),
        "tool_call_id": _TEXT,
        "weight": pl.Int8(),
    }
)
COLUMNS = {
    "messages": (pl.List(_MESSAGE), "the conversation in OpenAI's chat format, with thinking"),
    "tools": (_TEXT, "the offered tools as JSON"),
    "reward": (pl.Float64(), "the reward of the rollout"),
    "task_id": (_TEXT, "the task"),
    "domain": (_TEXT, "the domain of the task"),
    "execution_id": (_TEXT, "the rollout, trace or session"),
}
SCHEMA = pl.Schema({name: kind for name, (kind, _) in COLUMNS.items()})


@dataclass(frozen=True, slots=True)
class HubFolder:
    """The files of a repository."""

    rows: ParquetRows
    card: str

    def write(self, path: Path) -> None:
        """Write the folder `path`."""
        (path / "data").mkdir(parents=True)
        self.rows.write(path / "data" / "train.parquet")
        (path / CARD).write_text(self.card)


def export_hf(job: ExportJob) -> ExportResult:
    """Export the conversations of the best rollouts."""
    made = export_conversations(job, _rows)
    result = made.result()
    rows = ParquetRows(_frames(job.load_pieces(made.pieces)))
    card = _card(job, len(result.lineage), count_reasons(result.drops))
    return ExportResult(HubFolder(rows, card), result.lineage, result.drops)


def _rows(conversation: Conversation, facts: Facts) -> Rows:
    line, execution = chat_line(conversation), facts.execution
    row = {
        "messages": line["messages"],
        "tools": json.dumps(line["tools"], ensure_ascii=False) if "tools" in line else None,
        "reward": execution["outcome_reward"],
        **{name: execution[name] for name in ("task_id", "domain", "execution_id")},
    }
    yield row, list(conversation.answers.values())


def _frames(pieces: Iterator[bytes]) -> Iterator[pl.DataFrame]:
    for piece in pieces:
        yield pl.DataFrame([json.loads(line) for line in piece.splitlines()], SCHEMA)


def _card(job: ExportJob, rows: int, drops: dict[str, int]) -> str:
    manifest, options = job.dataset.manifest, job.options
    recipe = {name: manifest["recipe"][name] for name in SECTIONS if manifest["recipe"].get(name)}
    chosen = {k: v for k, v in asdict(options).items() if v not in (None, False)}
    left_out = {**manifest["drops"], **drops}
    return f"""---
license: {options.license or LICENSE}
tags: [{TAG}, agents, traces]
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train.parquet
---

# Conversations of an agent

{quantity(rows, "conversation")}, made by `ltrain convert --to hf` from dataset `{job.dataset.id}`.

| column | meaning |
| --- | --- |
{_table((f"`{name}`", meaning) for name, (_, meaning) in COLUMNS.items())}

## Selection

{_json(chosen)}

## Left out

| reason | count |
| --- | --- |
{_table((f"`{reason}`", count) for reason, count in sorted(left_out.items()))}

## Recipe

The parts of the recipe `{manifest["recipe_digest"]}` that selected, rewarded and filtered:

{_json(recipe)}
"""


def _table(rows: Any) -> str:
    return "\n".join(f"| {first} | {second} |" for first, second in rows)


def _json(value: object) -> str:
    return f"```json\n{json.dumps(value, indent=1, ensure_ascii=False, default=str)}\n```"
