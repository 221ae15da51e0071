"""Commands of this package."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ltrain_collector import store_cli
from ltrain_instrument.settings import ALLOW_HOSTS, HOME

app = typer.Typer()
key = typer.Typer(help="Make, list and revoke the keys of a store's folder.", no_args_is_help=True)
app.add_typer(key, name="key")

Directory = Annotated[
    Path | None, typer.Option("--dir", help="The store's folder; default: .ltrain/store.")
]
app.add_typer(store_cli.app)


@app.command()
def up(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="The store's folder; default: .ltrain/store.")
    ] = None,
    otlp_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Where OTLP comes in over HTTP."),
    ] = 4318,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="The same over gRPC.")] = 4317,
    http_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where SQL is answered: ClickHouse over HTTP.")
    ] = 8123,
    host: Annotated[
        str, typer.Option(help="The address to listen on; another machine's reach needs keys.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name by which clients ask for this machine, e.g. of a container; may be given "
            "again. Default: LTRAIN_ALLOW_HOSTS."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate, PEM: both HTTP ports speak TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
) -> None:
    """Start the collector and the trace store on this machine, until ctrl-C.

    What is sent is answered for once it is stored. Without keys only this machine is served. A port
    of 0 is any free one, and the line that is printed says which.

    Example: ltrain up --dir .ltrain/store
    """
    from ltrain_collector.server import Ports, serve
    from ltrain_collector.tls import Tls

    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("--tls-cert and --tls-key go together.")
    tls = Tls(tls_cert, tls_key) if tls_cert and tls_key else None
    ports = Ports(otlp_port, grpc_port, http_port)
    serve(directory or HOME.read() / "store", ports, host, tls, allow_host or ALLOW_HOSTS.read())


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


@key.command("make")
def make_key(
    role: Annotated[str, typer.Argument(help="query, ingest, service or admin.")],
    directory: Directory = None,
    note: Annotated[str, typer.Option(help="Who has it, for the list.")] = "",
    bind: Annotated[
        list[str] | None,
        typer.Option(
            help="Bind an ingest key to a rollout, rollout=ID, or to all of a run, run=NAME; and "
            "attempt, task, domain, wave, sample, mode as its spans carry them; once for each."
        ),
    ] = None,
    hours: Annotated[float, typer.Option(min=0.01, help="A bound key expires after this.")] = 24,
    rewards: Annotated[
        bool, typer.Option("--rewards", help="A bound key may give its rollout's own rewards.")
    ] = False,
) -> None:
    """Make a key and print it, the only time it is shown.

    From the first one on, every request to the store needs one. A bound key is signed, not listed.

    Example: ltrain key make query --note grafana
    """
    from ltrain_collector.key_report import bound, chosen
    from ltrain_collector.keys import Keys

    keys = Keys((directory or HOME.read() / "store").absolute())
    which = chosen(role)
    if bind or rewards:
        typer.echo(bound(keys, which, bind or [], hours * 3600, rewards))
        return
    made, entry = keys.make(which, note)
    typer.echo(made)
    typer.echo(f"ltrain: key {entry.id}, role {which}; it is not shown again.", err=True)


@key.command("list")
def list_keys(directory: Directory = None) -> None:
    """List the made keys: id, role, when, note; never the keys themselves.

    Example: ltrain key list
    """
    from ltrain_collector.key_report import lines
    from ltrain_collector.keys import Keys

    for line in lines(Keys((directory or HOME.read() / "store").absolute())):
        typer.echo(line)


@key.command("revoke")
def revoke_key(
    id: Annotated[str, typer.Argument(help="As `ltrain key list` gives it.")],
    directory: Directory = None,
) -> None:
    """Let a key be unknown from the next request on.

    Example: ltrain key revoke 1a2b3c4d
    """
    from ltrain_collector.keys import Keys

    Keys((directory or HOME.read() / "store").absolute()).revoke(id)
    typer.echo(f"ltrain: key {id} is revoked.")
