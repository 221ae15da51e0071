"""verl's prompt parquet: the first prompt of every task, as verl's own RLHFDataset reads it.

A row has `prompt` (messages of role and content), `data_source`, `ability`, `reward_model` with an
empty `ground_truth`, since traces hold none, and `extra_info` with the task's id for a reward
function to look it up by.
"""

import polars as pl

from ltrain_transforms.dataset import Dataset
from ltrain_transforms.exports.chat import Message
from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.converted import Converted, Options
from ltrain_transforms.exports.rollouts import STAGE, rollouts, talks
from ltrain_transforms.selection import dropped, gathered
from ltrain_transforms.tables import DROPS

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


def verl(dataset: Dataset, options: Options) -> Converted:
    """Give the first prompt of each task; of traffic without tasks, of each execution."""
    found = rollouts(dataset)
    spoken = talks(dataset, found, options.policy)
    lines: dict[str, dict[str, object]] = {}
    lineage: dict[str, list[str]] = {}
    fancy: list[tuple[str, str]] = []
    for row in found.taken.iter_rows(named=True):
        one = row["execution_id"]
        if one not in spoken.by_execution:
            continue
        name = row["task_id"] or one
        prompt = _prompt(spoken.by_execution[one][0])
        if prompt is None:
            fancy.append((one, "not_plain"))
            continue
        lineage.setdefault(name, []).append(one)
        source = {"data_source": row["run_id"] or "ltrain", "ability": row["domain"] or ""}
        told = {"index": len(lines), "split": row["mode"] or "train", "task_id": name}
        truth = {"style": "rule", "ground_truth": ""}
        rest = {**source, "reward_model": truth, "extra_info": told}
        lines.setdefault(name, {"prompt": prompt, **rest})
    reasons = pl.DataFrame(fancy, {"id": pl.String, "reason": pl.String}, orient="row")
    drops = gathered(DROPS, spoken.drops, dropped(STAGE, reasons, "id", REASONS))
    return Converted(pl.DataFrame(list(lines.values()), SCHEMA), list(lineage.values()), drops)


def _prompt(talk: Conversation) -> list[Message] | None:
    """Give what its first call was asked; None where that is more than roles and text."""
    messages = talk.before(min(talk.answers))
    plain = all(message.keys() == {"role", "content"} for message in messages)
    return messages if plain else None
