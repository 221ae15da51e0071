"""The command `ltrain ui`."""

from pathlib import Path
from typing import Annotated

import typer

from ltrain_instrument.settings import HOME

app = typer.Typer()


@app.command()
def ui(
    store: Annotated[
        str | None,
        typer.Option("--store", help="chdb:///dir or http://host:8123; default: LTRAIN_STORE."),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(help="The recipe with the rewards; default: ltrain.toml, if there is one."),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes any free one.")
    ] = 8484,
) -> None:
    """Serve pages on runs, rollouts, policies and datasets to a browser of this machine.

    The printed link has a code that signs one browser in. The pages only read: the store, and
    LTRAIN_HOME.

    Example: ltrain ui
    """
    from ltrain_ui.server import serve
    from ltrain_ui.sources import Sources

    with Sources(store, HOME.read(), recipe) as sources:
        serve(sources, port)
