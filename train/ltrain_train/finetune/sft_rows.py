"""The rows that `ltrain sft` trains on: the best rollouts, as the server sampled or a template
renders them."""

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import ClassVar

import polars as pl

from ltrain_instrument.files import make_private, sibling_path
from ltrain_instrument.quantity import quantity
from ltrain_train.finetune.report import (
    Balance,
    OfflineFiles,
    OfflineReport,
    execution_sides,
    explain,
    read_drops,
    summarize_outcomes,
)
from ltrain_train.finetune.source import HELD_OUT, TRAINED, OfflineSource, divide
from ltrain_train.updates import run_folder
from ltrain_transforms.exports import ExportOptions, export_dataset, read_rollouts
from ltrain_transforms.recipe import Sft

NARROW = (
    *("execution_id", "group_id", "tokens", "transition_ids"),
    *("prompt_ids", "response_ids", "response_mask"),
)
"""The columns of the rows that the report reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftReport(OfflineReport):
    """The training data of `ltrain sft`."""

    calls: Balance
    """Calls of the policy in the selected executions."""
    rows: int
    sampled_rows: int
    """The rows whose tokens a server sampled; the others are rendered."""
    tokens: int
    """Tokens to train on."""
    row_tokens: int
    """Tokens of the rows, prompts included."""
    holdout: float
    """Share of the tasks that is held out."""
    held_out_rows: int
    held_out_tokens: int
    epochs: int
    steps: int
    """Optimizer steps of an epoch."""
    unit: ClassVar[str] = "rows"

    @property
    def trained(self) -> int:
        return self.rows

    def facts(self) -> dict[str, str]:
        held_out = (
            f"{quantity(self.held_out_rows, 'row')} with {quantity(self.held_out_tokens, 'token')}"
        )
        none = "none" if not self.holdout else f"none, with holdout = {self.holdout:g}: raise it"
        return OfflineReport.facts(self) | {
            "calls": f"{self.calls}",
            "rows": f"{self.rows} with {self.tokens} of {self.row_tokens} tokens to train on",
            "tokens": f"of {self.sampled_rows} rows as sampled, of "
            f"{self.rows - self.sampled_rows} rendered by the chat template",
            "held out": held_out if self.held_out_rows else none,
            "steps": f"{self.steps} in each of {quantity(self.epochs, 'epoch')}",
        }


@dataclass(frozen=True, slots=True)
class SftRows(OfflineFiles):
    """The rows of one training."""

    report: SftReport


def select_rows(source: OfflineSource) -> SftRows:
    """Write the rows of the best rollouts, those to train on and those held out."""
    sft, folder = source.plan.recipe.sft, run_folder(source.plan, "sft")
    options = ExportOptions(
        policy=source.plan.policy,
        min=sft.min,
        best=sft.best,
        tokenizer=source.weights,
        chat_template=source.chat_template,
        recorded=True,
        max_tokens=source.context,
    )
    file = make_private(folder / "rows") / "rows.parquet"
    manifest = export_dataset(source.dataset, "rendered", options, file, allow_empty=True)
    drops = read_drops(manifest)
    narrow = pl.scan_parquet(file).select(NARROW).collect()
    if "sampled" in narrow["tokens"]:
        source.check_tokens()
    sides = divide(source, narrow["execution_id"], sft.holdout)
    paths = {each: file.with_name(f"{each}.parquet") for each in (TRAINED, HELD_OUT)}
    for side, path in paths.items():
        _write_side(file, sides.filter(side=side)["execution_id"], path)
    rollouts = sides.filter(side=TRAINED)["rollout"].sort()
    report = _make_report(source, sft, narrow, sides, drops)
    return SftRows(source, paths[TRAINED], paths[HELD_OUT], tuple(rollouts), report)


def _write_side(file: Path, executions: pl.Series, path: Path) -> None:
    draft = sibling_path(path)
    kept = pl.col("execution_id").is_in(executions.implode())
    pl.scan_parquet(file).filter(kept).collect().write_parquet(draft, compression="zstd")
    draft.replace(path)


def _make_report(
    source: OfflineSource, sft: Sft, rows: pl.DataFrame, sides: pl.DataFrame, drops: pl.DataFrame
) -> SftReport:
    transitions = source.dataset.table("transitions").filter(policy=source.plan.policy)
    calls = transitions.select("execution_id", "call_id")
    divided = rows.join(sides, "execution_id")
    trained, held_out = (divided.filter(side=side) for side in (TRAINED, HELD_OUT))
    counted = read_rollouts(source.dataset).selected
    return SftReport(
        policy=source.plan.policy,
        from_version=source.lineage.version,
        dataset=source.dataset.id,
        folder=source.dataset.path,
        executions=Balance.count(execution_sides(source, sides, drops, calls)),
        outcomes=summarize_outcomes(counted, sides),
        explanations=explain(source, drops, sides["rollout"]),
        reaches_threshold=sft.min is None or bool((counted["outcome_reward"] >= sft.min).any()),
        calls=Balance.count(_call_sides(calls, divided, drops)),
        rows=trained.height,
        sampled_rows=trained.filter(tokens="sampled").height,
        tokens=_count_trained(trained),
        row_tokens=sum(int(trained[each].list.len().sum()) for each in NARROW[4:6]),
        holdout=sft.holdout,
        held_out_rows=held_out.height,
        held_out_tokens=_count_trained(held_out),
        epochs=sft.epochs,
        steps=count_steps(trained, sft),
    )


def _call_sides(calls: pl.DataFrame, rows: pl.DataFrame, drops: pl.DataFrame) -> pl.Series:
    """Return the side of each call in a row, and the reason of each call that was dropped."""
    in_rows = rows.select("side", call_id="transition_ids").explode("call_id")
    dropped = calls.join(drops.unique("id"), left_on="call_id", right_on="id")
    left_out = dropped.join(in_rows, "call_id", "anti")["reason"]
    return pl.concat([in_rows["side"], left_out.rename("side")])


def _count_trained(rows: pl.DataFrame) -> int:
    return int(rows["response_mask"].list.sum().cast(pl.Int64).sum())


def count_steps(rows: pl.DataFrame, sft: Sft) -> int:
    """Return the optimizer steps of an epoch: at most one for each group."""
    groups = rows.select(pl.coalesce("group_id", "execution_id").n_unique()).item()
    return min(int(groups), ceil(rows.height / sft.rows_per_step))
