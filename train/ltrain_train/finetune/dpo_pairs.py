"""The pairs that `ltrain dpo` trains on: answers of a better and a worse rollout, as tokens."""

import json
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

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
from ltrain_train.finetune.source import CONSUMED, HELD_OUT, TRAINED, OfflineSource, divide
from ltrain_train.updates import run_folder
from ltrain_transforms import rendering
from ltrain_transforms.exports import ExportOptions, export_dataset, read_rollouts

REASONS = {
    "not_rendered": rendering.REASONS["not_rendered"],
    "too_long": "a prompt and its answer have more tokens than filter.max_tokens, "
    "serve.max_model_len or the model allows",
}
IDS = pl.List(pl.UInt32)
PAIRS = pl.Schema(
    {
        "better": pl.String(),
        "worse": pl.String(),
        "reason": pl.String(),  # why the pair is left out, or null
        "prompt_ids": IDS,
        "chosen_ids": IDS,
        "rejected_ids": IDS,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DpoReport(OfflineReport):
    """The training data of `ltrain dpo`."""

    pairs: int
    tokens: int
    """Tokens of the chosen and the rejected answers."""
    pair_tokens: int
    """Tokens of the pairs, prompts included."""
    longest: int
    """Tokens of the longest prompt with its answer."""
    held_out_pairs: int
    epochs: int
    steps: int
    """Optimizer steps of an epoch."""
    unit: ClassVar[str] = "pairs"

    @property
    def trained(self) -> int:
        return self.pairs

    def facts(self) -> dict[str, str]:
        return OfflineReport.facts(self) | {
            "pairs": f"{self.pairs} with {self.tokens} of {self.pair_tokens} tokens to train on",
            "held out": quantity(self.held_out_pairs, "pair"),
            "steps": f"{self.steps} in each of {quantity(self.epochs, 'epoch')}",
        }


@dataclass(frozen=True, slots=True)
class DpoPairs(OfflineFiles):
    """The pairs of one training."""

    report: DpoReport


def select_pairs(source: OfflineSource) -> DpoPairs:
    """Write the preference pairs, those to train on and those held out."""
    dpo, folder = source.plan.recipe.dpo, run_folder(source.plan, "dpo")
    file = make_private(folder / "rows") / "pairs.jsonl"
    options = ExportOptions(policy=source.plan.policy, pairs=dpo.pairs)
    manifest = export_dataset(source.dataset, "preferences", options, file, allow_empty=True)
    pairs = _tokenize(source, file, manifest["lineage"])
    drops = pl.concat([read_drops(manifest), _pair_drops(pairs)])
    kept = pairs.filter(pl.col("reason").is_null())
    sides = divide(source, pl.concat([kept["better"], kept["worse"]]), dpo.holdout)
    divided = _divide_pairs(kept, sides)
    paths = {each: file.with_name(f"{each}.parquet") for each in (TRAINED, HELD_OUT)}
    for side, path in paths.items():
        draft = sibling_path(path)
        divided.filter(side=side).select(list(PAIRS)[3:]).write_parquet(draft)
        draft.replace(path)
    members = _members(divided).join(sides.select("execution_id", "rollout"), "execution_id")
    rollouts = members.filter(side=TRAINED)["rollout"].unique().sort()
    report = _make_report(source, divided, members, drops)
    return DpoPairs(source, paths[TRAINED], paths[HELD_OUT], tuple(rollouts), report)


def _tokenize(source: OfflineSource, file: Path, lineage: list[list[str]]) -> pl.DataFrame:
    """Return `PAIRS` of the lines of a preference export."""
    tokenizer = rendering.load_tokenizer(source.weights, source.chat_template)
    limits = (source.plan.recipe.filter.max_tokens, source.context)
    longest = min(each for each in limits if each is not None)
    with file.open() as lines:
        rows = [
            (*ids, *_pair_tokens(tokenizer, json.loads(line), longest))
            for ids, line in zip(lineage, lines, strict=True)
        ]
    return pl.DataFrame(rows, PAIRS, orient="row")


def _pair_tokens(tokenizer: Any, line: dict[str, Any], longest: int) -> tuple[Any, ...]:
    """Return the reason why a pair is left out, or None, and its tokens."""
    rendered = [
        rendering.render_answer(tokenizer, line["prompt"], line[role][0], line.get("tools", []))
        for role in ("chosen", "rejected")
    ]
    found = [each for each in rendered if each is not None]
    if len(found) < 2:
        return ("not_rendered", None, None, None)
    if max(len(prompt) + len(answer) for prompt, answer in found) > longest:
        return ("too_long", None, None, None)
    (prompt, chosen), (_, rejected) = found
    return (None, prompt, chosen, rejected)


def _pair_drops(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return `id`, `reason` and `detail` of the executions of pairs that are left out."""
    members = pairs.drop_nulls("reason").with_columns(id=pl.concat_list("better", "worse"))
    detail = pl.col("reason").replace_strict(REASONS, default="", return_dtype=pl.String)
    return members.explode("id").select("id", "reason", detail=detail)


def _divide_pairs(pairs: pl.DataFrame, sides: pl.DataFrame) -> pl.DataFrame:
    """Add `side`: both rollouts of a pair are of one task, so they differ only in `consumed`."""
    side = {name: pl.col(name).replace_strict(
        sides["execution_id"], sides["side"], return_dtype=pl.String
    ) for name in ("better", "worse")}  # fmt: skip
    consumed = (side["better"] == CONSUMED) | (side["worse"] == CONSUMED)
    either = pl.when(consumed).then(pl.lit(CONSUMED)).otherwise(side["better"])
    return pairs.with_columns(side=either)


def _members(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return `execution_id` and `side` of the executions in pairs, the trained side first."""
    order = {TRAINED: 0, HELD_OUT: 1, CONSUMED: 2}
    both = pairs.select("side", execution_id=pl.concat_list("better", "worse"))
    ranked = both.explode("execution_id").with_columns(
        rank=pl.col("side").replace_strict(order, return_dtype=pl.Int8)
    )
    return ranked.sort("execution_id", "rank").unique("execution_id", keep="first").drop("rank")


def _make_report(
    source: OfflineSource, pairs: pl.DataFrame, members: pl.DataFrame, drops: pl.DataFrame
) -> DpoReport:
    dpo = source.plan.recipe.dpo
    transitions = source.dataset.table("transitions").filter(policy=source.plan.policy)
    trained = pairs.filter(side=TRAINED)
    prompt, chosen, rejected = (int(trained[each].list.len().sum()) for each in list(PAIRS)[3:])
    length = [pl.col("prompt_ids").list.len() + pl.col(each).list.len() for each in list(PAIRS)[4:]]
    calls = transitions.select("execution_id", "call_id")
    return DpoReport(
        policy=source.plan.policy,
        from_version=source.lineage.version,
        dataset=source.dataset.id,
        folder=source.dataset.path,
        executions=Balance.count(execution_sides(source, members, drops, calls)),
        outcomes=summarize_outcomes(read_rollouts(source.dataset).selected, members),
        explanations=explain(source, drops, members["rollout"]),
        pairs=trained.height,
        tokens=chosen + rejected,
        pair_tokens=2 * prompt + chosen + rejected,
        longest=int(pairs.select(pl.max_horizontal(length).max()).item() or 0),
        held_out_pairs=pairs.filter(side=HELD_OUT).height,
        epochs=dpo.epochs,
        steps=ceil(trained.height / dpo.pairs_per_step),
    )
