"""The command `ltrain ui`."""

from pathlib import Path
from typing import Annotated

import typer

from ltrain_collector.command_options import NamedServerOptions, with_options
from ltrain_instrument.quantity import quantity
from ltrain_instrument.settings import HOME

app = typer.Typer()


@app.command()
@with_options
def ui(
    server: NamedServerOptions,
    store: Annotated[
        str | None,
        typer.Option("--store", help="chdb:///dir or http://host:8123; default: LTRAIN_STORE."),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(help="The recipe with the rewards; default: ltrain.toml, if there is one."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The port; 0 takes any free one; default: that of the running `ltrain up "
            "--port-base`, else 8484.",
        ),
    ] = None,
    export: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            metavar="RUN DIR",
            help="Write the pages of a run to a folder for any web server, and exit.",
        ),
    ] = None,
) -> None:
    """Serve pages on runs, rollouts, policies and datasets to browsers.

    The printed link has a code that signs browsers in for an hour. With --host, a key of the store
    that can read does. The pages read the store and LTRAIN_HOME; they write feedback by hand only.

    Example: ltrain ui --export text-to-sql site
    """
    from ltrain_instrument.addresses import UI, find_port
    from ltrain_ui.app import make_open_app
    from ltrain_ui.export import export_pages
    from ltrain_ui.server import serve
    from ltrain_ui.sources import Sources

    home = HOME.read()
    with Sources(store, home, recipe) as sources:
        if export is None:
            if port is None:  # not the port of another `ltrain ui`, which is taken
                port = find_port(home, UI, 8484, ("up",))
            serve(sources, server.host, port, server.tls, server.hosts)
            return
        run, folder = export
        count = export_pages(make_open_app(sources), run, folder)
        typer.echo(f"{quantity(count, 'file')} in {folder}: open {folder}/index.html")
