"""The commands `ltrain sft` and `ltrain dpo`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from ltrain_collector.command_options import with_options
from ltrain_instrument.identity import SourceMode

app = typer.Typer()

RecipeArgument = Annotated[Path, typer.Argument(help="The recipe.")]


@dataclass(frozen=True, slots=True)
class FinetuneOptions:
    """The options of both trainers."""

    from_dataset: Annotated[
        Path | None, typer.Option(help="Train on this dataset of `ltrain build`, not on the store.")
    ] = None
    mode: Annotated[
        SourceMode | None, typer.Option(help="The mode to read; default: the recipe's source.mode.")
    ] = None
    store: Annotated[str | None, typer.Option(help="Store to read; default: LTRAIN_STORE.")] = None
    model: Annotated[
        Path | None, typer.Option(help="Hugging Face model directory of a new policy's version 0.")
    ] = None
    epochs: Annotated[
        int | None, typer.Option(min=1, help="How often every row is trained on; replaces epochs.")
    ] = None
    holdout: Annotated[
        float | None,
        typer.Option(
            min=0, max=0.99, help="Share of the tasks that only measure the loss; replaces holdout."
        ),
    ] = None
    again: Annotated[
        bool,
        typer.Option("--again", help="Also on rollouts that the policy was trained on before."),
    ] = False
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a dataset that a version was trained on.")
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what there is to train on only.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False

    def run(self, recipe: Path, trainer: Literal["sft", "dpo"], **keys: float | None) -> None:
        """Train by a recipe, in whose section of the trainer `keys` replace some."""
        from ltrain_train.finetune import command
        from ltrain_train.updates import OfflineOptions

        check_source(self.mode, self.from_dataset)
        keys |= {"epochs": self.epochs, "holdout": self.holdout}
        plan = command.plan_offline(recipe, trainer, keys, model=self.model, mode=self.mode)
        data = (self.store, self.from_dataset, self.again, self.replace)
        command.run_offline(plan, trainer, OfflineOptions(*data, self.dry_run, self.as_json))


@app.command()
@with_options
def sft(
    options: FinetuneOptions,
    recipe: RecipeArgument = Path("ltrain.toml"),
    min_outcome: Annotated[
        float | None, typer.Option("--min", help="Least outcome of a rollout; replaces sft.min.")
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(min=1, help="The best N rollouts of each group; replaces sft.best."),
    ] = None,
) -> None:
    """Train a policy to answer as the best stored rollouts did, and publish the next version.

    Example: ltrain sft ltrain.toml --min 1 --best 1 --holdout 0.1 --model .ltrain/models/smollm2
    """
    options.run(recipe, "sft", min=min_outcome, best=best)


@app.command()
@with_options
def dpo(
    options: FinetuneOptions,
    recipe: RecipeArgument = Path("ltrain.toml"),
    pairs: Annotated[
        int | None, typer.Option(min=1, help="Most pairs of each group; replaces dpo.pairs.")
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(min=0.001, help="How strongly the policy is held back; replaces dpo.beta."),
    ] = None,
) -> None:
    """Train a policy to prefer the answers of better rollouts, and publish the next version.

    Example: ltrain dpo ltrain.toml --pairs 2 --epochs 3 --holdout 0.1
    """
    options.run(recipe, "dpo", pairs=pairs, beta=beta)


def check_source(mode: SourceMode | None, from_dataset: Path | None) -> None:
    """Check that a mode is not combined with a dataset.

    Raises:
        BadParameter: when it is.
    """
    if mode is not None and from_dataset:
        raise typer.BadParameter(
            "--mode selects stored traces, and a dataset is of one mode already. Remove --mode or "
            "--from-dataset."
        )
