"""Exports of a dataset: one module a format, and the registry of them.

No export needs token ids, so traces that did not pass the gateway can be exported too.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ltrain_instrument.errors import UnknownName
from ltrain_instrument.files import move_into_place, temporary_directory
from ltrain_transforms.datasets import Dataset, Progress, count_reasons, ignore_progress
from ltrain_transforms.exports import (
    atif,
    conversations,
    hf,
    openai,
    preferences,
    rendered,
    rollouts,
    sft,
    sharegpt,
    tasks,
    trl,
    verl,
)
from ltrain_transforms.exports.conversion import BadExport, ExportOptions, ExportResult
from ltrain_transforms.exports.conversion_files import ExportJob

FORMATS: dict[str, tuple[str, Callable[[ExportJob], ExportResult]]] = {
    "tasks": (".jsonl", tasks.export_tasks),
    "sft": (".jsonl", sft.export_sft),
    "openai": (".jsonl", openai.export_openai),
    "trl": (".jsonl", trl.export_trl),
    "preferences": (".jsonl", preferences.export_preferences),
    "sharegpt": (".jsonl", sharegpt.export_sharegpt),
    "atif": (".jsonl", atif.export_atif),
    "hf": ("", hf.export_hf),
    "rendered": (".parquet", rendered.export_rendered),
    "verl": (".parquet", verl.export_verl),
}
"""The choices of `ltrain convert --to`: the suffix of the file, or '' for a folder, and the
function that makes it."""

REASONS = {
    **rollouts.REASONS,
    **conversations.REASONS,
    **tasks.REASONS,
    **openai.REASONS,
    **preferences.REASONS,
    **sharegpt.REASONS,
    **rendered.REASONS,
    **verl.REASONS,
}
"""Reasons for drops of an export, and what they mean."""


def export_dataset(
    dataset: Dataset,
    to: str,
    options: ExportOptions,
    out: Path,
    progress: Progress = ignore_progress,
    *,
    allow_empty: bool = False,
) -> dict[str, Any]:
    """Export `dataset` to `out`, with a manifest beside it, and return the manifest.

    Both are complete or absent.

    Args:
        out: the file, or the folder of a format that is one.
        allow_empty: write a file without rows if none is left.

    Raises:
        UnknownName: when there is no format of that name.
        BadExport: when the file has another suffix, the folder has files, or no row is left.
    """
    if to not in FORMATS:
        raise UnknownName("format", to, FORMATS)
    suffix, export = FORMATS[to]
    if suffix and out.suffix != suffix:
        raise BadExport(f"{to} is written as {suffix}, and --out is {out}. Name it *{suffix}.")
    if not suffix and out.is_dir() and any(out.iterdir()):
        raise BadExport(f"{to} is written as a folder, and {out} has files. Name a new folder.")
    with temporary_directory(out) as folder, ExportJob(dataset, options, folder, progress) as job:
        result = export(job)
        reasons = count_reasons(result.drops)
        if not result.lineage and not allow_empty:
            counts = ", ".join(f"{count} {name}" for name, count in reasons.items())
            raise BadExport(
                f"{dataset.path} has no row for {to}. Left out: {counts or 'nothing'}. Choose "
                "another dataset, or options that leave out less."
            )
        result.rows.write(folder / out.name)
        manifest = {
            "dataset": dataset.id,
            "to": to,
            "options": {k: v for k, v in asdict(options).items() if v not in (None, False)},
            "rows": len(result.lineage),
            "drops": reasons,
            "left_out": result.drops.select("id", "reason", "detail").to_dicts(),
            "lineage": result.lineage,
        }
        manifest_path = folder / f"{out.name}.manifest.json"
        manifest_path.write_text(json.dumps(manifest, indent=1, default=str) + "\n")
        move_into_place(folder / out.name, out)
        move_into_place(manifest_path, out.with_name(manifest_path.name))
    return manifest
