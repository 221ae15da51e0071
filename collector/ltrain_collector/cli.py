"""Commands of this package."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ltrain_collector import store_cli
from ltrain_instrument.settings import HOME

app = typer.Typer()
app.add_typer(store_cli.app)


@app.command()
def up(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="The store's folder; default: .ltrain/store.")
    ] = None,
    otlp_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where spans come in: OTLP over HTTP.")
    ] = 4318,
    http_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where SQL is answered: ClickHouse over HTTP.")
    ] = 8123,
) -> None:
    """Start the collector and the trace store on this machine, until ctrl-C.

    A span is answered for once it is stored. Both ports listen on 127.0.0.1 only.

    Example: ltrain up --dir .ltrain/store
    """
    from ltrain_collector.server import serve

    serve(directory or HOME.read() / "store", otlp_port, http_port)


@app.command()
def sql(
    query: Annotated[
        str | None, typer.Argument(help="What to read, e.g. from otel.spans; '-': stdin.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the query from this file.")] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(help="name=value for {name:Type} in the query; may be given again."),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="chdb:///dir or http://host:8123; default: LTRAIN_STORE.")
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="table, json, jsonl, csv, tsv, parquet, arrow, or a ClickHouse format.",
        ),
    ] = "table",
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write to this file instead of the terminal.")
    ] = None,
) -> None:
    """Query the traces, without changing them.

    A table shows its first 1000 rows. csv, tsv, json, jsonl and parquet stream in bounded memory.

    Example: ltrain sql "SELECT wave, avg(value) FROM otel.rewards GROUP BY wave ORDER BY wave"
    """
    from ltrain_collector.report import parameters, quietly, write

    if (query is None) == (file is None):
        raise typer.BadParameter("Give a query, or --file with one; '-' reads standard input.")
    text = file.read_text() if file else sys.stdin.read() if query == "-" else str(query)
    with quietly():
        write(text, store, "json" if json else form, out, parameters(param or []))
