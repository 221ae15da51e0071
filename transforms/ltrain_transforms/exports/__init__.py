"""What a dataset becomes for others: tasks, chats, preference pairs, rendered rows, verl's rows.

None of them needs token ids, so traffic that never passed a gateway of ours serves too.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ltrain_instrument.errors import UnknownName
from ltrain_transforms.build import Progress, silent
from ltrain_transforms.dataset import Dataset
from ltrain_transforms.exports import (
    conversations,
    preferences,
    rendered,
    rollouts,
    sft,
    tasks,
    verl,
)
from ltrain_transforms.exports.converted import BadExport, Converted, Options
from ltrain_transforms.exports.work import Work
from ltrain_transforms.manifest import reasons
from ltrain_transforms.parts import beside

FORMATS: dict[str, tuple[str, Callable[[Work], Converted]]] = {
    "tasks": (".jsonl", tasks.tasks),
    "sft": (".jsonl", sft.sft),
    "preferences": (".jsonl", preferences.preferences),
    "rendered": (".parquet", rendered.rendered),
    "verl": (".parquet", verl.verl),
}
"""What `ltrain convert --to` makes: how its file's name ends, and what makes it."""

REASONS = {
    **rollouts.REASONS,
    **conversations.REASONS,
    **tasks.REASONS,
    **preferences.REASONS,
    **rendered.REASONS,
    **verl.REASONS,
}
"""Why something is in no row of a conversion."""


def write(
    dataset: Dataset, to: str, options: Options, out: Path, progress: Progress = silent
) -> dict[str, Any]:
    """Convert `dataset` and write `out` with a manifest beside it, which is given back.

    Both appear whole or not at all.

    Raises:
        UnknownName: when there is no form of that name.
        BadExport: when the file's name says another kind of file, or nothing is left to write.
    """
    if to not in FORMATS:
        raise UnknownName("form", to, FORMATS)
    suffix, convert = FORMATS[to]
    if out.suffix != suffix:
        raise BadExport(f"{to} is written as {suffix}, and --out is {out}. Name it *{suffix}.")
    with beside(out) as folder, Work(dataset, options, folder, progress) as work:
        made = convert(work)
        if not made.lineage:
            counted = ", ".join(f"{count} {name}" for name, count in reasons(made.drops).items())
            raise BadExport(
                f"{dataset.path} gives no row of {to}; left out: {counted or 'nothing'}."
            )
        made.rows.write(folder / out.name)
        manifest = {
            "dataset": dataset.id,
            "to": to,
            "options": {k: v for k, v in asdict(options).items() if v is not None},
            "rows": len(made.lineage),
            "drops": reasons(made.drops),
            "left_out": made.drops.select("id", "reason", "detail").to_dicts(),
            "lineage": made.lineage,
        }
        told = folder / f"{out.name}.manifest.json"
        told.write_text(json.dumps(manifest, indent=1, default=str) + "\n")
        (folder / out.name).rename(out)
        told.rename(out.with_name(told.name))
    return manifest


__all__ = ["FORMATS", "REASONS", "BadExport", "Converted", "Options", "write"]
