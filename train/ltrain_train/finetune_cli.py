"""The commands `ltrain sft` and `ltrain dpo`."""

from pathlib import Path
from typing import Annotated

import typer

from ltrain_instrument.identity import SourceMode

app = typer.Typer()

RecipeArgument = Annotated[Path, typer.Argument(help="The recipe.")]
DatasetOption = Annotated[
    Path | None, typer.Option(help="Train on this dataset of `ltrain build`, not on the store.")
]
ModeOption = Annotated[
    SourceMode | None, typer.Option(help="The mode to read; default: the recipe's source.mode.")
]
StoreOption = Annotated[str | None, typer.Option(help="Store to read; default: LTRAIN_STORE.")]
ModelOption = Annotated[
    Path | None, typer.Option(help="Hugging Face model directory that a new policy starts from.")
]
HoldoutOption = Annotated[
    float | None,
    typer.Option(
        min=0, max=0.99, help="Share of the tasks that only measure the loss; replaces holdout."
    ),
]
EpochsOption = Annotated[
    int | None, typer.Option(min=1, help="How often every row is trained on; replaces epochs.")
]
AgainOption = Annotated[
    bool,
    typer.Option("--again", help="Also on rollouts that the policy was trained on before."),
]
ReplaceOption = Annotated[
    bool, typer.Option("--replace", help="Replace a dataset that a version was trained on.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Report what there is to train on only.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def sft(
    recipe: RecipeArgument = Path("ltrain.toml"),
    from_dataset: DatasetOption = None,
    mode: ModeOption = None,
    store: StoreOption = None,
    model: ModelOption = None,
    min_outcome: Annotated[
        float | None,
        typer.Option("--min", help="Least outcome of a rollout; replaces sft.min."),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(min=1, help="The best N rollouts of each group; replaces sft.best."),
    ] = None,
    epochs: EpochsOption = None,
    holdout: HoldoutOption = None,
    again: AgainOption = False,
    replace: ReplaceOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a policy to answer as the best stored rollouts did, and publish the next version.

    Example: ltrain sft ltrain.toml --min 1 --best 1 --holdout 0.1 --model .ltrain/models/smollm2
    """
    from ltrain_train.finetune import command

    check_source(mode, from_dataset)
    options = {"min": min_outcome, "best": best, "epochs": epochs, "holdout": holdout}
    plan = command.plan_offline(recipe, "sft", options, model=model, mode=mode)
    training = {"again": again, "replace": replace, "dry_run": dry_run, "as_json": as_json}
    command.run_offline(plan, "sft", store, from_dataset, **training)


@app.command()
def dpo(
    recipe: RecipeArgument = Path("ltrain.toml"),
    from_dataset: DatasetOption = None,
    mode: ModeOption = None,
    store: StoreOption = None,
    model: ModelOption = None,
    pairs: Annotated[
        int | None, typer.Option(min=1, help="Most pairs of each group; replaces dpo.pairs.")
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(min=0.001, help="How strongly the policy is held back; replaces dpo.beta."),
    ] = None,
    epochs: EpochsOption = None,
    holdout: HoldoutOption = None,
    again: AgainOption = False,
    replace: ReplaceOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a policy to prefer the answers of better rollouts, and publish the next version.

    Example: ltrain dpo ltrain.toml --pairs 2 --epochs 3 --holdout 0.1
    """
    from ltrain_train.finetune import command

    check_source(mode, from_dataset)
    options = {"pairs": pairs, "beta": beta, "epochs": epochs, "holdout": holdout}
    plan = command.plan_offline(recipe, "dpo", options, model=model, mode=mode)
    training = {"again": again, "replace": replace, "dry_run": dry_run, "as_json": as_json}
    command.run_offline(plan, "dpo", store, from_dataset, **training)


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
