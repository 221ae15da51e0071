"""The commands `ltrain up`, `ltrain sql` and `ltrain key`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ltrain_collector import store_cli
from ltrain_collector.command_group import CommandGroup
from ltrain_collector.command_options import NamedServerOptions, with_options
from ltrain_instrument.settings import HOME

app = typer.Typer()
key = typer.Typer(
    cls=CommandGroup,
    help="Make, list and revoke the keys of a store's folder.",
    no_args_is_help=True,
)
app.add_typer(key, name="key")

Directory = Annotated[
    Path | None, typer.Option("--dir", help="The store's folder; default: .ltrain/store.")
]
app.add_typer(store_cli.app)


@app.command()
@with_options
def up(
    server: NamedServerOptions,
    directory: Directory = None,
    port_base: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65531,
            help="First of five ports: OTLP over HTTP, OTLP over gRPC, SQL, and those of `ltrain "
            "serve` and `ltrain ui` of the same LTRAIN_HOME; default: 4318, 4317, 8123, 8000, "
            "8484.",
        ),
    ] = None,
    otlp_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of OTLP over HTTP; default: 4318.")
    ] = None,
    grpc_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of OTLP over gRPC; default: 4317.")
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port of SQL, ClickHouse's HTTP interface; default: 8123."
        ),
    ] = None,
    forward: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]URL",
            help="Send accepted requests to this OTLP endpoint, too, with the headers of "
            "LTRAIN_FORWARD_NAME_HEADERS or LTRAIN_FORWARD_HEADERS; can be repeated.",
        ),
    ] = None,
) -> None:
    """Start the collector and the trace store on this machine, until ctrl-C.

    A request is acknowledged once it is stored. A store without keys is served only on this
    machine. Port 0 takes any free port, which the printed line names. Commands and agents with the
    same LTRAIN_HOME find the ports.

    Example: ltrain up --port-base 9000
    """
    from ltrain_collector.forward import parse_targets
    from ltrain_collector.server import Ports, serve

    targets = parse_targets(forward or [])
    ports = Ports.choose(port_base, otlp=otlp_port, grpc=grpc_port, sql=http_port)
    folder = directory or HOME.read() / "store"
    serve(folder, ports, server.host, server.tls, server.hosts, targets)


@app.command()
def sql(
    query: Annotated[
        str | None, typer.Argument(help="The SQL query, e.g. of otel.spans; '-' reads stdin.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the query from this file.")] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(help="name=value for {name:Type} in the query; can be repeated."),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="chdb:///dir or http://host:8123; default: LTRAIN_STORE.")
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format", help="table, json, jsonl, csv, tsv, parquet, arrow, or a ClickHouse format."
        ),
    ] = "table",
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write to this file instead of standard output.")
    ] = None,
) -> None:
    """Query the store with SQL, read-only.

    A table shows the first 1000 rows. csv, tsv, json, jsonl and parquet are streamed in bounded
    memory.

    Example: ltrain sql "SELECT wave, avg(value) FROM otel.evaluations GROUP BY wave ORDER BY wave"
    """
    from ltrain_collector.query_output import ignore_closed_pipe, parse_parameters, write_result

    if (query is None) == (file is None):
        raise typer.BadParameter(
            "Pass a query, or --file with a file of one; '-' reads standard input."
        )
    text = file.read_text() if file else sys.stdin.read() if query == "-" else str(query)
    with ignore_closed_pipe():
        write_result(text, store, "json" if json else form, out, parse_parameters(param or []))


@key.command("make")
def make_key(
    role: Annotated[str, typer.Argument(help="query, ingest, service or admin.")],
    directory: Directory = None,
    note: Annotated[str, typer.Option(help="A note for the list, e.g. who has the key.")] = "",
    bind: Annotated[
        list[str] | None,
        typer.Option(
            help="Bind an ingest key to a rollout (rollout=ID) or a run (run=NAME), and to "
            "attempt, task, domain, wave, sample or mode; can be repeated."
        ),
    ] = None,
    hours: Annotated[
        float, typer.Option(min=0.01, help="Hours after which a bound key expires.")
    ] = 24,
    rewards: Annotated[
        bool, typer.Option("--rewards", help="Allow a bound key to send rewards of its rollout.")
    ] = False,
) -> None:
    """Make a key and print it; it is never shown again.

    Once the first key is made, every request to the store needs one. Bound keys are signed and are
    not listed.

    Example: ltrain key make query --note grafana
    """
    from ltrain_collector.access import Keys, make_bound_key, parse_role

    keys = Keys((directory or HOME.read() / "store").absolute())
    which = parse_role(role)
    if bind or rewards:
        typer.echo(make_bound_key(keys, which, bind or [], hours * 3600, rewards))
        return
    made, entry = keys.make_key(which, note)
    typer.echo(made)
    typer.echo(f"ltrain: key {entry.id}, role {which}; it is not shown again.", err=True)


@key.command("list")
def list_keys(directory: Directory = None) -> None:
    """List the made keys: id, role, time, note; never the keys themselves.

    Example: ltrain key list
    """
    from ltrain_collector.access import Keys, key_lines

    for line in key_lines(Keys((directory or HOME.read() / "store").absolute())):
        typer.echo(line)


@key.command("revoke")
def revoke_key(
    id: Annotated[str, typer.Argument(help="The id that `ltrain key list` prints.")],
    directory: Directory = None,
) -> None:
    """Revoke a key: the store refuses the next request with it.

    Example: ltrain key revoke 1a2b3c4d
    """
    from ltrain_collector.access import Keys

    Keys((directory or HOME.read() / "store").absolute()).revoke_key(id)
    typer.echo(f"ltrain: key {id} is revoked.")
