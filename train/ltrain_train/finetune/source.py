"""The input of an offline trainer: the recipe, the dataset, and the version at the start."""

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl

from ltrain_collector.store import Store
from ltrain_instrument.identity import SourceMode
from ltrain_train.errors import BadRun
from ltrain_train.policy import Policies, find_artifact, read_config
from ltrain_train.runs import Plan, find_chat_template, make_plan
from ltrain_train.updates import OfflineOptions, build_dataset, open_dataset, read_lineage
from ltrain_transforms.datasets import Dataset
from ltrain_transforms.policy_file import read_base_digests
from ltrain_transforms.policy_lineage import Lineage, rollout_name
from ltrain_transforms.recipe import Recipe

TRAINED, HELD_OUT, CONSUMED = "train", "held_out", "consumed"
"""The sides of a row: it is trained on, it only measures the loss, or it was trained on before."""


def plan_offline(
    path: Path,
    section: str,
    options: dict[str, Any],
    *,
    model: Path | None,
    mode: SourceMode | None,
) -> Plan:
    """Return the plan of an offline trainer.

    Args:
        path: the recipe's file.
        section: the trainer's section of the recipe.
        options: they replace keys of the section; None replaces nothing.
        model: model directory that becomes version 0 of a new policy.
        mode: replaces the recipe's `source.mode`.
    """
    plan = make_plan(path, model=model, updates=None, once=True, mode=mode)
    plan = plan.for_policy(plan.policy)
    fields = plan.recipe.model_dump(by_alias=True, exclude_unset=True)
    named = {name: value for name, value in options.items() if value is not None}
    fields[section] = fields.get(section, {}) | named
    return replace(plan, recipe=Recipe.from_sections(fields))


@dataclass(frozen=True, slots=True)
class OfflineSource:
    """A dataset, and the version that is trained on it."""

    plan: Plan
    dataset: Dataset
    lineage: Lineage
    """The lineage of the version at the start of training."""
    weights: Path
    """Directory of the full weights that training starts from, with the tokenizer."""

    @property
    def chat_template(self) -> str | None:
        """The text of the chat template that the recipe serves; None: that of the model."""
        file = find_chat_template(self.plan.recipe.serve, self.plan.folder)
        return None if file is None else file.read_text()

    @property
    def context(self) -> int | None:
        """The most tokens of a row that the model and its server take; None: unknown."""
        limits = (
            read_config(self.weights).get("max_position_embeddings"),
            self.plan.recipe.serve.max_model_len,
        )
        return min((each for each in limits if each is not None), default=None)

    def check_tokens(self) -> None:
        """Check that the dataset's tokens are those of the policy."""
        own = read_base_digests(self.plan.home / "policies" / self.plan.policy)
        base = self.dataset.manifest["base"]
        for part, name in (("tokenizer", "tokenizer"), ("template", "chat template")):
            if {part} <= own.keys() & base.keys() and own[part] != base[part]:
                raise BadRun(
                    f"{self.dataset.path} has tokens of another model: its {name} is "
                    f"{base[part][:16]}, and that of policy '{self.plan.policy}' is "
                    f"{own[part][:16]}. Build the dataset again from the store: `ltrain build`."
                )


def open_source(plan: Plan, trainer: str, options: OfflineOptions) -> OfflineSource:
    """Open the dataset that the options name, or build one of the store's traces.

    Args:
        trainer: a part of the dataset's name.
    """
    weights = _find_weights(plan)
    lineage = read_lineage(plan, again=options.again, register=not options.dry_run)
    if options.from_dataset is not None:
        dataset = open_dataset(plan, options.from_dataset)
        return OfflineSource(plan, dataset, lineage, weights)
    with Store.open(options.store, create=False) as opened:
        part = f"{trainer}-{plan.policy}@{lineage.version}"
        built = build_dataset(plan, opened, part, replace=options.replace)
    return OfflineSource(plan, built, lineage, weights)


def _find_weights(plan: Plan) -> Path:
    """Return the directory of the weights at the start of training."""
    policies, name = Policies(plan.home), plan.policy
    if not policies.versions(name):
        if plan.model is None:
            raise BadRun(
                f"Policy '{name}' has no version to start from. Add --model DIR, a model directory "
                "in Hugging Face layout."
            )
        folder = plan.model
    else:
        folder = policies.weights_path(name, policies.current(name))
    if find_artifact(folder) == "prompt":
        raise BadRun(
            f"The versions of policy '{name}' are prompts, which have no weights to train. Name "
            "another policy in [[policy]], and add --model DIR, the model that it starts from."
        )
    return folder


def divide(source: OfflineSource, executions: pl.Series, holdout: float) -> pl.DataFrame:
    """Return `execution_id`, `rollout` and `side` of the selected executions.

    A task is held out if the hash of its key is small enough, so it is on the same side in every
    run. An execution without a key is divided by itself.
    """
    table = source.dataset.table("executions").filter(
        pl.col("execution_id").is_in(executions.unique().implode())
    )
    named = table.select(
        "execution_id",
        rollout=rollout_name(),
        task=pl.coalesce("task_key", "execution_id"),
    )
    consumed = source.lineage.consumed(named["rollout"])["rollout"]
    held_out = pl.Series([_place(task) < holdout for task in named["task"]], dtype=pl.Boolean)
    side = (
        pl.when(pl.col("rollout").is_in(consumed.implode())).then(pl.lit(CONSUMED))
        .when(held_out).then(pl.lit(HELD_OUT))
        .otherwise(pl.lit(TRAINED))
    )  # fmt: skip
    return named.select("execution_id", "rollout", side=side).sort("execution_id")


def _place(task: str) -> float:
    """Return a number from 0 to below 1 that depends on the id alone."""
    return int(sha256(task.encode()).hexdigest()[:8], 16) / (1 << 32)
