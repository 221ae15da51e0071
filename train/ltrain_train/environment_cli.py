"""The command `ltrain environment`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def environment(
    recipe: Annotated[Path, typer.Argument(help="The recipe, with [rollout].")],
    out: Annotated[Path, typer.Argument(help="Folder that is created.")],
) -> None:
    """Write a recipe's tasks, agent and reward as an environment of verifiers.

    Whatever loads environments of verifiers 0.4 can run the package: its own evaluation, prime-rl,
    or ltrain again. The modules of the recipe's folder are copied, data and weights are not.

    Example: ltrain environment ltrain.toml text-to-sql-env
    """
    from ltrain_train.environment_package import write_package

    name = write_package(recipe, out)
    typer.echo(f"{out} has the module {name}. Install it beside verifiers: pip install {out}")
    typer.echo(f'As an environment of ltrain: environment = "verifiers:{name}"')
